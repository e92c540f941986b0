//! The screen, drawn from made-up reports of a mount.
//!
//! The snapshots are in `snapshots/`. `INSTA_UPDATE=always cargo test -p nvfold-cli screen` renews them.

use super::*;
use crate::statistics::Statistics;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};
use std::time::Instant;

/// Makes a report of a mount with these figures.
fn report(policy: &str, figures: Value) -> Statistics {
    let mut report = json!({
        "device": "/dev/pmem0", "mount_point": format!("/mnt/{policy}"), "pid": 4711, "persistence": "dax",
        "read_only": false, "policy": policy,
        "superblock": {
            "format_version": 4, "uuid": "", "label": "", "clean": false, "incompatible_features": 0,
            "read_only_compatible_features": 0, "compatible_features": 0, "device_bytes": 16u64 << 30,
            "journal_offset": 0, "segment_table_offset": 0, "chunk_table_offset": 0, "data_offset": 0,
            "block_bytes": 4096, "segment_bytes": 2 << 20, "read_write_mounts": 1, "created_ns": 0, "mounted_ns": 0,
        },
    });
    report.as_object_mut().unwrap().extend(figures.as_object().unwrap().clone());
    serde_json::from_value(report).unwrap()
}

/// Makes the report of a mount with policy denova that has worked for `n` tenths of a second.
fn denova(n: u64) -> Statistics {
    let mib = |n: u64| n << 20;
    let figures = json!({
        "space": {
            "logical_bytes": mib(100 * n), "stored_bytes": mib(75 * n), "saved_bytes": mib(25 * n),
            "free_bytes": mib(15000), "transactions": 3000 * n,
            "by_policy": {
                "denova": { "offered": 0, "shared": 0, "collisions": 0 },
                "inline": { "offered": 100 * n, "shared": 50 * n, "collisions": 0 },
                "nv-dedup": { "offered": 0, "shared": 0, "collisions": 0 },
            },
        },
        "index": {
            "kind": "pm", "weak": "sha1", "entries": 12000 * n, "dram_bytes": 4096, "media_bytes": mib(64),
            "lookups": 1000 * n, "reads": 1250 * n, "reordered": 3,
        },
        "denova": {
            "mode": "immediate", "paused": false, "queue_entries": 2000 - 100 * n, "queue_bytes": mib(200 - 10 * n),
            "queue_dram_bytes": 64000, "lag_ns": 1_500_000_000, "dequeued": 200 * n, "looked_at_bytes": mib(30 * n),
            "shared_bytes": mib(25 * n), "busy_ns": 50_000_000 * n,
            "lingered": [{ "up_to_ns": 1_000_000, "entries": 60 }, { "up_to_ns": 250_000_000, "entries": 40 }],
        },
        "requests": {
            "reads": 10 * n, "bytes_read": mib(n), "writes": 2500 * n, "bytes_written": mib(40 * n), "changes": 7 * n,
        },
        "traffic": {
            "profile": "optane", "bytes_read": 0, "bytes_stored": 0, "bytes_streamed": mib(40 * n),
            "lines_flushed": 20000 * n, "fences": 5000 * n,
        },
    });
    report("denova", figures)
}

/// Makes a mount with a report at each of these tenths of a second.
fn watched(tenths: &[u64], statistics: impl Fn(u64) -> Statistics) -> Watched {
    let start = Instant::now();
    let mut mount = Watched::new(statistics(0).mount_point.unwrap().into());
    for tenth in tenths {
        mount.add(statistics(*tenth), start + Duration::from_millis(100 * tenth));
    }
    mount
}

fn drawn(width: u16, height: u16, screen: &mut Screen, mounts: &[Watched]) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame, mounts)).unwrap();
    terminal
}

fn only() -> Screen {
    Screen::new(Duration::from_millis(500), true)
}

fn list() -> Screen {
    Screen::new(Duration::from_secs(1), false)
}

#[test]
fn the_screen_of_one_mount_shows_all_sections() {
    let mount = watched(&[0, 5, 6, 10], denova);
    insta::assert_snapshot!(drawn(80, 24, &mut only(), &[mount]).backend());
}

#[test]
fn the_screen_of_a_mount_without_a_queue_shows_that_there_is_none() {
    let mount = watched(&[0, 5], |n| report("inline", json!({ "space": { "logical_bytes": n } })));
    insta::assert_snapshot!(drawn(80, 24, &mut only(), &[mount]).backend());
}

#[test]
fn energy_and_wear_are_shown_first_on_a_device_with_energy_figures() {
    let pcm = |n: u64| {
        let figures = json!({
            "space": { "logical_bytes": n },
            "requests": { "reads": 0, "bytes_read": 0, "writes": n, "bytes_written": n << 20, "changes": 0 },
            "traffic": {
                "profile": "pcm", "bytes_read": 0, "bytes_stored": 0, "bytes_streamed": n << 20, "lines_flushed": 0,
                "fences": n, "charged_ns": n * 157_286_400, "joules": n as f64 * 0.006_291_456,
            },
            "wear": {
                "segments": 95, "opened": 40 * n, "opened_max": n, "opened_mean": 0.4 * n as f64,
                "endurance_writes": 1e10, "endurance_used": n as f64 / 1e10, "lifetime_years": 12.0,
            },
        });
        report("deext", figures)
    };
    let mount = watched(&[0, 5], pcm);
    let energy = mount.figures.as_ref().unwrap().energy.unwrap();
    assert!((energy.joules_per_gb.unwrap() - 6.0).abs() < 1e-9 && (energy.watts - 0.062_914_56).abs() < 1e-9);
    let screen = drawn(80, 24, &mut only(), &[mount]).backend().to_string();
    for words in ["0.03 J (6.00 J/GB), 0.063 W; 1.573 s", "95, opened 5 times at most, 2.00 on average"] {
        assert!(screen.contains(words), "{words} in {screen}");
    }
    let lines = watched(&[0, 5], pcm).figures.unwrap().in_lines();
    assert!(lines.contains("endurance") && lines.contains("12.0 years left at this pace"), "{lines}");
}

#[test]
fn failed_syncs_are_shown_first_and_marked_in_the_list_while_they_fail() {
    let error = "No space left on device (os error 28)";
    let of = |is_failing| {
        let errors = json!({ "count": 3, "last_error": error, "is_failing": is_failing });
        move |n: u64| report("inline", json!({ "space": { "logical_bytes": n }, "sync_errors": errors.clone() }))
    };
    let failing = || watched(&[0, 5], of(true));
    let screen = drawn(100, 24, &mut only(), &[failing()]).backend().to_string();
    let facts = screen.lines().skip_while(|line| !line.contains(" device ")).nth(1).unwrap();
    assert!(facts.contains(&format!("syncs        they fail; 3 failed, the last with: {error}")), "{screen}");
    let lines = failing().figures.unwrap().in_lines();
    assert!(lines.contains(&format!("3 failed, the last with: {error}; what was written since")), "{lines}");
    let list_of = |mount| drawn(90, 8, &mut list(), &[mount]).backend().to_string();
    let marked = list_of(failing());
    assert!(marked.contains("! /mnt/inline") && marked.contains("! syncs fail"), "{marked}");
    let over = list_of(watched(&[0, 5], of(false)));
    assert!(!over.contains('!'), "{over}");
    let screen = drawn(80, 24, &mut only(), &[watched(&[0, 5], of(false))]).backend().to_string();
    assert!(screen.contains("a later one succeeded; 3 failed"), "{screen}");
}

#[test]
fn rates_are_blank_until_the_second_snapshot() {
    let mount = watched(&[3], denova);
    insta::assert_snapshot!(drawn(80, 24, &mut only(), &[mount]).backend());
}

#[test]
fn rates_restart_when_another_process_serves_the_directory() {
    let mut mount = watched(&[0, 10], denova);
    let rates = mount.figures.clone().unwrap().rates;
    mount.add(Statistics { pid: Some(1), ..denova(0) }, Instant::now());
    assert_eq!(mount.figures.as_ref().unwrap().rates.writes, rates.writes, "there is nothing to compare with");
    mount.add(Statistics { pid: Some(1), ..denova(1) }, Instant::now() + Duration::from_secs(1));
    assert!(mount.figures.unwrap().rates.writes < rates.writes);
}

#[test]
fn the_list_has_a_row_for_each_mount_and_enter_opens_one() {
    let mounts = [
        watched(&[0, 5, 10], denova),
        watched(&[0, 5], |n| report("inline", json!({ "space": { "logical_bytes": n } }))),
        watched(&[0], |_| report("off", json!({}))),
    ];
    let mut screen = list();
    insta::assert_snapshot!("list", drawn(90, 8, &mut screen, &mounts).backend());
    assert!(!screen.back(), "the list is shown: Esc ends");
    screen.choose(1, mounts.len());
    screen.choose(1, mounts.len());
    screen.choose(1, mounts.len());
    screen.choose(-1, mounts.len());
    screen.open();
    let opened = drawn(90, 24, &mut screen, &mounts).backend().to_string();
    assert!(opened.contains("/mnt/inline") && opened.contains("Esc back"), "{opened}");
    assert!(screen.back());
    // The chosen mount has gone, and so has one more.
    let drawn = drawn(90, 8, &mut screen, &mounts[..1]).backend().to_string();
    assert!(drawn.contains("1 mounts") && drawn.contains("/mnt/denova"), "{drawn}");
}

#[test]
fn a_terminal_that_is_too_small_shows_the_figures_as_text() {
    let mounts = [watched(&[0, 5], denova)];
    insta::assert_snapshot!("small", drawn(40, 8, &mut only(), &mounts).backend());
    for (width, height) in [(1, 1), (79, 24), (80, 23), (200, 5)] {
        let screen = drawn(width, height, &mut only(), &mounts).backend().to_string();
        assert!(!screen.contains("throughput"), "{width}x{height}");
        assert!(width == 1 || screen.contains("q quit"), "{width}x{height}: {screen}");
    }
    assert!(drawn(80, 24, &mut only(), &mounts).backend().to_string().contains("throughput"));
    assert!(drawn(80, 5, &mut list(), &mounts).backend().to_string().contains("q quit"));
    assert!(drawn(80, 6, &mut list(), &[]).backend().to_string().contains("no nvfold is mounted"));
}
