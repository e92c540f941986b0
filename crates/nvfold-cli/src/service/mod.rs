//! A mount as a service: described by a file, started and stopped by a service manager.
//!
//! | module | content |
//! |---|---|
//! | [`description`] | the file that describes a service: its keys, and what can be wrong with them |
//! | [`manager`] | what the service manager is told, and what it keeps between processes |
//! | [`place`] | where the service is mounted now, whatever its file says by then |
//! | [`steps`] | what runs outside the sandbox of the server: mounting, stopping, clearing up |

mod description;
mod manager;
mod place;
mod steps;

pub(crate) use description::{Service, file_of};
pub(crate) use manager::{enter_its_namespace, ready, starting, stopping};
pub(crate) use steps::{clear, forget_handed, handed, make_directory, mount, note, reload, stop};
