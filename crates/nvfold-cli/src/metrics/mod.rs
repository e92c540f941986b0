//! Metrics of mounts, in the formats of OpenMetrics and Prometheus.
//!
//! ```text
//! server of a mount -> Figures -+-> attribute user.nvfold.metrics -> `nvfold metrics`, of one mount or of all
//!                               +-> -o metrics=, by the server itself
//! Figures of mounts -> families -> text -> stdout, a socket (`http`, `listener`), or a file (`textfile`)
//! ```
//!
//! Nothing here walks what is stored: the figures are those that the file system keeps anyway. A user who may not see the
//! figures of a mount ([`Reader::Other`](nvfold_mount::Reader)) gets those that every user may see.

mod endpoint;
mod families;
mod figures;
mod http;
mod listener;
mod text;
mod textfile;

pub(crate) use endpoint::Endpoint;
pub(crate) use figures::{EventCounts, Figures, Source};
pub(crate) use text::Format;

use crate::failure::Outcome;
use families::Mounted;
use listener::Listener;
use nvfold_mount::Reader;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use textfile::Textfile;

/// One mount of a scrape: its figures, or that it does not answer.
pub(crate) struct Scraped {
    pub device: String,
    pub mount_point: String,
    pub figures: Option<Figures>,
}

/// Makes the text of a scrape.
pub(crate) fn encode(scraped: &[Scraped], format: Format) -> String {
    let mounted: Vec<Mounted<'_>> = scraped.iter().map(Mounted::of).collect();
    text::encode(families::all(&mounted), format)
}

/// Asks all mounts that are to be shown, as a reader may see them.
pub(crate) type Scrape = Arc<dyn Fn(Reader) -> Vec<Scraped> + Send + Sync>;

/// An endpoint that exists: a socket that is bound, or a file that can be written. What is made is removed with it.
pub(crate) enum Opened {
    Listener(Listener),
    Textfile(Textfile),
}

impl Opened {
    /// Binds the socket, or checks the folder of the file.
    pub(crate) fn new(endpoint: &Endpoint) -> Outcome<Opened> {
        match endpoint {
            Endpoint::Textfile(file) => Textfile::open(file).map(Opened::Textfile),
            socket => Listener::bind(socket).map(Opened::Listener),
        }
    }

    /// Returns where it can be read; with port 0, the port that the kernel has chosen.
    pub(crate) fn place(&self, endpoint: &Endpoint) -> String {
        match (self, endpoint) {
            (Opened::Listener(listener), Endpoint::Tcp { address, .. }) => {
                format!("http://{}/metrics", SocketAddr::new(address.ip(), listener.port().unwrap_or(address.port())))
            }
            _ => endpoint.to_string(),
        }
    }

    /// Serves until the process ends, or the guard is dropped.
    pub(crate) fn serve(self, scrape: Scrape) -> Outcome<Serving> {
        match self {
            Opened::Listener(listener) => Ok(Serving { _made: Box::new(listener.serve(one_at_a_time(scrape))?) }),
            Opened::Textfile(file) => Ok(Serving { _made: Box::new(file.serve(scrape)?) }),
        }
    }
}

/// Keeps an endpoint. What it made (a socket, a file) is removed when this is dropped.
pub(crate) struct Serving {
    _made: Box<dyn Send>,
}

/// However many clients ask, one scrape is made at a time.
fn one_at_a_time(scrape: Scrape) -> Scrape {
    let turn = Mutex::new(());
    Arc::new(move |reader| {
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        scrape(reader)
    })
}
