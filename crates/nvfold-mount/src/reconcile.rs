//! Reconciles counts and free space after a crash, while requests are served. Unmounting finishes what is left.

use crate::access::Access;
use crate::background::{Background, Stop};
use crate::events::{Event, Events};
use nvfold::FileSystem;
use std::thread;
use std::time::{Duration, Instant};

/// How often work that waits for a writable mount looks whether it may start.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Starts the thread, which ends when all is reconciled.
pub(crate) fn start(fs: FileSystem, access: Access, events: Events) -> Background {
    Background::start(move |stop| {
        let begun = Instant::now();
        let ended = reconcile(&fs, &access, stop);
        let found = fs.recovery();
        match ended {
            Err(error) => events(Event::NotReconciled { error }),
            Ok(()) if !found.loaded && found.reconciled => {
                events(Event::Recovered { found, time: begun.elapsed() });
            }
            Ok(()) => {}
        }
    })
}

fn reconcile(fs: &FileSystem, access: &Access, stop: &Stop) -> nvfold::Result<()> {
    while !stop.is_asked() {
        if access.is_read_only() && !fs.is_read_only() {
            stop.rest(LOOK_AGAIN);
        } else if fs.reconcile_step()? {
            return Ok(());
        } else {
            // Lets threads that wait for the step to end go first.
            thread::yield_now();
        }
    }
    Ok(())
}
