//! What the policies that choose have chosen: each switch is told. Housekeeping looks once a second, so that of several
//! switches within a second only the last is told; they are counted all the same (`nvfold stats`).

use crate::events::{Event, Events};
use nvfold::{Chosen, InodeNumber, Method, Policy, Stats};
use std::collections::BTreeMap;

/// What was chosen when housekeeping last looked.
#[derive(Default)]
pub(crate) struct SwitchesTold {
    /// By directory, 0 for the whole device: the number of switches, and the policy. As many as a report has.
    auto: BTreeMap<u64, (u64, Policy)>,
    method: Option<(u64, Method)>,
}

impl SwitchesTold {
    /// Tells what is new.
    pub(crate) fn tell(&mut self, stats: &Stats, events: &Events) {
        if let Some(auto) = &stats.auto {
            let chosen: Vec<&Chosen> = [&auto.device].into_iter().chain(&auto.directories).collect();
            self.auto.retain(|directory, _| chosen.iter().any(|chosen| chosen.directory == *directory));
            chosen.into_iter().for_each(|chosen| self.tell_chosen(chosen, events));
        }
        if let Some(nv_dedup) = &stats.nv_dedup {
            let now = (nv_dedup.switches, nv_dedup.method);
            let before = self.method.replace(now);
            if let Some((switches, from)) = before
                && switches != now.0
                && from != now.1
            {
                events(Event::MethodSwitched { from, to: now.1 });
            }
        }
    }

    fn tell_chosen(&mut self, chosen: &Chosen, events: &Events) {
        let before = self.auto.insert(chosen.directory, (chosen.switches, chosen.policy));
        // Of a directory that was not in the last report it is not known when it switched.
        if let Some((switches, from)) = before
            && switches != chosen.switches
            && from != chosen.policy
        {
            let directory = (chosen.directory != 0).then_some(InodeNumber(chosen.directory));
            events(Event::PolicySwitched { directory, from: Some(from), chosen: Box::new(chosen.clone()) });
        }
    }
}
