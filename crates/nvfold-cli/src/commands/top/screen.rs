//! The screen of `nvfold top`: a list of mounts, or all figures of one mount.

use super::rates::{Figures, Queue, Watched, count, time};
use crate::report;
use crate::size;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Gauge, Paragraph, Row, Sparkline, Table, TableState, Wrap};
use std::collections::VecDeque;
use std::time::Duration;

/// The columns and rows that the view of one mount needs.
const WIDTH: u16 = 80;
const HEIGHT: u16 = 24;
/// The rows of that view without policies, with five facts of the device.
const HEIGHT_WITHOUT_POLICIES: u16 = 21;
/// The rows that the list needs.
const LIST_HEIGHT: u16 = 6;
/// The columns of the names on the left, and of the figures of a data flow.
const NAME: usize = 13;
const FLOW: u16 = 55;

const TITLE: Style = Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const ALARM: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// The state of the screen.
pub(super) struct Screen {
    interval: Duration,
    /// True if the user named one mount.
    only: bool,
    /// True if one mount is shown, not the list.
    is_open: bool,
    /// The index of the chosen mount.
    chosen: usize,
}

impl Screen {
    /// Makes the screen for one mount (`only`), or for all in a list.
    pub(super) fn new(interval: Duration, only: bool) -> Screen {
        Screen { interval, only, is_open: only, chosen: 0 }
    }

    /// Shows the chosen mount alone.
    pub(super) fn open(&mut self) {
        self.is_open = true;
    }

    /// Returns to the list; false if there is no list, or it is shown already.
    pub(super) fn back(&mut self) -> bool {
        let goes = self.is_open && !self.only;
        self.is_open &= !goes;
        goes
    }

    /// Moves the choice down by so many rows.
    pub(super) fn choose(&mut self, down: isize, mounts: usize) {
        self.chosen = self.chosen.saturating_add_signed(down).min(mounts.saturating_sub(1));
    }

    /// Draws the screen.
    pub(super) fn draw(&mut self, frame: &mut Frame, mounts: &[Watched]) {
        // The number of mounts may have changed.
        self.choose(0, mounts.len());
        let area = frame.area();
        let height = if self.is_open { HEIGHT } else { LIST_HEIGHT };
        if area.width < WIDTH || area.height < height {
            return draw_small(frame, area, mounts.get(self.chosen));
        }
        match mounts.get(self.chosen) {
            None => frame.render_widget(Paragraph::new("no nvfold is mounted; q quits"), area),
            Some(mount) if self.is_open => self.draw_mount(frame, area, mount),
            Some(_) => self.draw_list(frame, area, mounts),
        }
    }

    fn interval_words(&self) -> String {
        format!("every {} s", self.interval.as_secs_f64())
    }

    fn draw_list(&self, frame: &mut Frame, area: Rect, mounts: &[Watched]) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(3), Constraint::Length(1)]).areas(area);
        let title = format!("nvfold top: {} mounts, {}", mounts.len(), self.interval_words());
        frame.render_widget(Paragraph::new(Span::styled(title, TITLE)), head);
        let fails = |mount: &Watched| mount.figures.as_ref().is_some_and(Figures::do_syncs_fail);
        let names = ["mounted on", "policy", "written/s", "read/s", "saved", "queue", "lag", "lines/s"];
        let header = Row::new(names.map(|name| Cell::new(if name == names[0] { name.into() } else { right(name, 9) })));
        let widths = [Constraint::Min(12)].into_iter().chain([Constraint::Length(9); 7]);
        let rows = mounts.iter().map(|mount| match &mount.figures {
            Some(figures) => list_row(figures),
            None => Row::new([mount.dir.display().to_string()]),
        });
        let table = Table::new(rows, widths)
            .header(header.style(DIM))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let mut state = TableState::default().with_selected(self.chosen);
        frame.render_stateful_widget(table, body, &mut state);
        let mut keys = vec![Span::styled("q quit   up, down choose   Enter show one", DIM)];
        keys.extend(mounts.iter().any(fails).then(|| Span::styled("   ! syncs fail", ALARM)));
        frame.render_widget(Paragraph::new(Line::from(keys)), foot);
    }

    fn draw_mount(&self, frame: &mut Frame, area: Rect, mount: &Watched) {
        let Some(figures) = &mount.figures else {
            let text = format!("nvfold top: {}: the first figures come in a moment", mount.dir.display());
            return frame.render_widget(Paragraph::new(text), area);
        };
        let policies = figures.policies.len() as u16;
        let facts = device_facts(figures);
        // More than five facts are shown only if there is room.
        let spare = area.height.saturating_sub(HEIGHT_WITHOUT_POLICIES + policies);
        let shown = facts.len().min(usize::from(5 + spare));
        let [head, flow, savings, queue, device, of_policies, foot] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(4),
            Constraint::Length(3),
            Constraint::Length(4),
            Constraint::Length(1 + shown as u16),
            Constraint::Length(1 + policies),
            Constraint::Min(1),
        ])
        .areas(area);
        let title =
            format!("nvfold top: {}   policy {}   {}", figures.mount_point, figures.policy, self.interval_words());
        let head_lines = vec![Line::styled(title, TITLE), Line::raw(figures.device_words())];
        frame.render_widget(Paragraph::new(head_lines), head);
        draw_flow(frame, flow, mount, figures);
        draw_savings(frame, savings, figures);
        draw_queue(frame, queue, figures.queue.as_ref());
        draw_facts(frame, device, "device", &facts[..shown]);
        let facts: Vec<(&str, String)> =
            figures.policies.iter().map(|(name, of)| (name.as_str(), of.words())).collect();
        draw_facts(frame, of_policies, "pieces, by policy", &facts);
        let keys = if self.only { "q quit" } else { "q quit   up, down choose   Esc back to the list" };
        frame.render_widget(Paragraph::new(Span::styled(keys, DIM)), foot);
    }
}

/// Returns facts about the device: first failed syncs, and then, on a device that costs energy, the cost.
fn device_facts(figures: &Figures) -> Vec<(&'static str, String)> {
    let index = vec![("index", figures.index.words()), ("searches", figures.index.search_words())];
    let traffic = vec![
        ("transactions", format!("{}/s, {} in all", count(figures.rates.transactions), figures.transactions)),
        ("lines", figures.lines_words()),
        ("wear", figures.wear.words()),
    ];
    let syncs = figures.sync_errors.iter().map(|errors| ("syncs", errors.in_brief())).collect();
    let cost = figures.cost_words();
    if figures.energy.is_some() {
        [syncs, traffic, cost, index].concat()
    } else {
        [syncs, index, traffic, cost].concat()
    }
}

/// Draws the figures of one mount as text, where there is no room for a screen.
fn draw_small(frame: &mut Frame, area: Rect, mount: Option<&Watched>) {
    let figures = mount.and_then(|mount| mount.figures.as_ref()).map(Figures::in_lines);
    let text = format!("q quit   up, down choose\n{}", figures.unwrap_or_default());
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), area);
}

fn list_row(figures: &Figures) -> Row<'static> {
    let Figures { rates, queue, .. } = figures;
    let queued = queue.as_ref().map_or("-".into(), |queue| size::show(queue.bytes));
    let lag = queue.as_ref().map_or("-".into(), |queue| time(queue.lag_seconds));
    let numbers = [
        figures.policy.clone(),
        size::show(rates.written_bytes as u64),
        size::show(rates.read_bytes as u64),
        report::percent(figures.saved_bytes, figures.logical_bytes),
        queued,
        lag,
        count(rates.lines_written),
    ];
    let cells = numbers.iter().map(|number| Cell::new(right(number, 9)));
    let name = match figures.do_syncs_fail() {
        true => Cell::new(format!("! {}", figures.mount_point)).style(ALARM),
        false => Cell::new(figures.mount_point.clone()),
    };
    Row::new([name].into_iter().chain(cells))
}

fn right(text: &str, width: usize) -> String {
    format!("{text:>width$}")
}

fn section(title: &str) -> Block<'_> {
    Block::new().borders(Borders::TOP).border_style(DIM).title(Span::styled(format!(" {title} "), TITLE))
}

/// Draws reads, writes and changes, with a graph of the last minutes.
fn draw_flow(frame: &mut Frame, area: Rect, mount: &Watched, figures: &Figures) {
    let block = section("throughput");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [left, right] = Layout::horizontal([Constraint::Length(FLOW), Constraint::Min(1)]).areas(inner);
    let Figures { rates, requests, .. } = figures;
    let row = |name: &str, operations: f64, bytes: f64, total: u64| {
        let (operations, bytes, total) = (count(operations), size::show(bytes as u64), size::show(total));
        Line::raw(format!("{name:<NAME$}{operations:>7}/s {bytes:>9}/s, {total:>9} in all"))
    };
    let (changes, changed) = (count(rates.changes), requests.changes);
    let lines = vec![
        row("writes", rates.writes, rates.written_bytes, requests.bytes_written),
        row("reads", rates.reads, rates.read_bytes, requests.bytes_read),
        Line::raw(format!("{:<NAME$}{changes:>7}/s {changed:>22} in all", "changes")),
    ];
    frame.render_widget(Paragraph::new(lines), left);
    let [of_writes, of_reads, _] = Layout::vertical([Constraint::Length(1); 3]).areas(right);
    draw_history(frame, of_writes, &mount.written, Color::Green);
    draw_history(frame, of_reads, &mount.read, Color::Blue);
}

/// Draws a graph, with the latest value on the right.
fn draw_history(frame: &mut Frame, area: Rect, history: &VecDeque<u64>, color: Color) {
    let shown = history.len().saturating_sub(usize::from(area.width));
    let latest = history.iter().skip(shown).copied();
    frame.render_widget(Sparkline::default().data(latest).style(Style::new().fg(color)), area);
}

fn draw_savings(frame: &mut Frame, area: Rect, figures: &Figures) {
    let block = section("savings");
    let [bar, words] = Layout::vertical([Constraint::Length(1); 2]).areas(block.inner(area));
    frame.render_widget(block, area);
    let share = figures.saved_bytes as f64 / figures.logical_bytes.max(1) as f64;
    let gauge = Gauge::default().ratio(share.clamp(0.0, 1.0)).gauge_style(Style::new().fg(Color::Green));
    frame.render_widget(gauge, bar);
    frame.render_widget(Paragraph::new(figures.saved_words()), words);
}

fn draw_queue(frame: &mut Frame, area: Rect, queue: Option<&Queue>) {
    let Some(queue) = queue else {
        return draw_facts(frame, area, "queue of policy denova", &[("queue", "no data goes there".into())]);
    };
    let title = format!("queue of policy denova, mode {}", queue.mode_words());
    let facts = [("queue", queue.length_words()), ("daemon", queue.work_words()), ("since mount", queue.total_words())];
    draw_facts(frame, area, &title, &facts);
}

fn draw_facts(frame: &mut Frame, area: Rect, title: &str, facts: &[(&str, String)]) {
    let lines: Vec<Line> = facts.iter().map(|(name, words)| Line::raw(format!("{name:<NAME$}{words}"))).collect();
    frame.render_widget(Paragraph::new(lines).block(section(title)), area);
}

#[cfg(test)]
mod tests;
