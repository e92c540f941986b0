//! Reports about a mount that its program makes, and that processes read as extended attributes of any file in it.

use crate::counters::Counters;
use nvfold::Usage;

/// The virtual extended attribute of every file in a mount whose value is its report ([`Reports::stats`]), for root and
/// the user who mounted it; for others without the figures that change with what is written. It is not listed.
pub const REPORT_ATTRIBUTE: &str = "user.nvfold.stats";

/// The virtual extended attribute of every file in a mount whose value tells what each stored byte is for
/// ([`Reports::usage`]). Root and the user who mounted it may read it. It is not listed.
pub const USAGE_ATTRIBUTE: &str = "user.nvfold.usage";

/// The virtual extended attribute of every file in a mount whose value are its figures for monitoring
/// ([`Reports::metrics`]), at a cost that does not grow with what is stored. Who may see what is as for
/// [`REPORT_ATTRIBUTE`]. It is not listed.
pub const METRICS_ATTRIBUTE: &str = "user.nvfold.metrics";

/// Who reads a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Root or the user who mounted the file system, who may see every figure.
    Manager,
    /// Anybody else, to whom figures could tell what others store.
    Other,
}

/// Makes the values of the three attributes. `nvfold stats` and other commands read them as JSON of their own.
pub trait Reports: Send + Sync {
    /// Makes the value of [`REPORT_ATTRIBUTE`]. `served`: the requests of the kernel.
    fn stats(&self, served: &Counters, reader: Reader) -> Vec<u8>;

    /// Makes the value of [`METRICS_ATTRIBUTE`]; `None` gives ENODATA, as if there were no such attribute.
    fn metrics(&self, served: &Counters, reader: Reader) -> Option<Vec<u8>> {
        let _ = (served, reader);
        None
    }

    /// Makes the value of [`USAGE_ATTRIBUTE`]; `None` gives EIO. `usage` is `None` if it is not known yet.
    fn usage(&self, usage: Option<Usage>) -> Option<Vec<u8>>;
}
