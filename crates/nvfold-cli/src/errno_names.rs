//! The names of the system's errors, for JSON.

use rustix::io::Errno;

const NAMES: [(Errno, &str); 54] = [
    (Errno::PERM, "EPERM"),
    (Errno::NOENT, "ENOENT"),
    (Errno::INTR, "EINTR"),
    (Errno::IO, "EIO"),
    (Errno::NXIO, "ENXIO"),
    (Errno::TOOBIG, "E2BIG"),
    (Errno::NOEXEC, "ENOEXEC"),
    (Errno::BADF, "EBADF"),
    (Errno::CHILD, "ECHILD"),
    (Errno::AGAIN, "EAGAIN"),
    (Errno::NOMEM, "ENOMEM"),
    (Errno::ACCESS, "EACCES"),
    (Errno::FAULT, "EFAULT"),
    (Errno::NOTBLK, "ENOTBLK"),
    (Errno::BUSY, "EBUSY"),
    (Errno::EXIST, "EEXIST"),
    (Errno::XDEV, "EXDEV"),
    (Errno::NODEV, "ENODEV"),
    (Errno::NOTDIR, "ENOTDIR"),
    (Errno::ISDIR, "EISDIR"),
    (Errno::INVAL, "EINVAL"),
    (Errno::NFILE, "ENFILE"),
    (Errno::MFILE, "EMFILE"),
    (Errno::NOTTY, "ENOTTY"),
    (Errno::TXTBSY, "ETXTBSY"),
    (Errno::FBIG, "EFBIG"),
    (Errno::NOSPC, "ENOSPC"),
    (Errno::SPIPE, "ESPIPE"),
    (Errno::ROFS, "EROFS"),
    (Errno::MLINK, "EMLINK"),
    (Errno::PIPE, "EPIPE"),
    (Errno::RANGE, "ERANGE"),
    (Errno::DEADLK, "EDEADLK"),
    (Errno::NAMETOOLONG, "ENAMETOOLONG"),
    (Errno::NOSYS, "ENOSYS"),
    (Errno::NOTEMPTY, "ENOTEMPTY"),
    (Errno::LOOP, "ELOOP"),
    (Errno::NODATA, "ENODATA"),
    (Errno::PROTO, "EPROTO"),
    (Errno::OVERFLOW, "EOVERFLOW"),
    (Errno::OPNOTSUPP, "EOPNOTSUPP"),
    (Errno::ADDRINUSE, "EADDRINUSE"),
    (Errno::ADDRNOTAVAIL, "EADDRNOTAVAIL"),
    (Errno::CONNABORTED, "ECONNABORTED"),
    (Errno::CONNRESET, "ECONNRESET"),
    (Errno::NOBUFS, "ENOBUFS"),
    (Errno::NOTCONN, "ENOTCONN"),
    (Errno::TIMEDOUT, "ETIMEDOUT"),
    (Errno::CONNREFUSED, "ECONNREFUSED"),
    (Errno::ALREADY, "EALREADY"),
    (Errno::INPROGRESS, "EINPROGRESS"),
    (Errno::STALE, "ESTALE"),
    (Errno::DQUOT, "EDQUOT"),
    (Errno::CANCELED, "ECANCELED"),
];

/// Returns the name of an error; of one without a name here, its number.
pub(crate) fn name(errno: i32) -> String {
    let known = NAMES.iter().find(|(known, _)| known.raw_os_error() == errno);
    known.map_or_else(|| errno.to_string(), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_names_of_the_c_library() {
        assert_eq!([2, 28, 122, 4096].map(name), ["ENOENT", "ENOSPC", "EDQUOT", "4096"]);
    }
}
