//! The state of a locked inode: for a writer, who keeps readers out, and for the daemon, who lets them in.

use crate::inode::State;
use nvfold_sync::{RwLockUpgradableReadGuard, RwLockWriteGuard};

/// The state of a locked inode. Only the holder of the lock may change it.
pub(crate) trait Locked {
    /// True if readers are kept out as well. It is false for the daemon only.
    const IS_EXCLUSIVE: bool;

    fn state(&self) -> &State;

    /// Runs `change` on the state while readers are kept out.
    fn exclusively<T>(&mut self, change: impl FnOnce(&mut State) -> T) -> T;
}

impl Locked for &mut State {
    const IS_EXCLUSIVE: bool = true;

    fn state(&self) -> &State {
        self
    }

    fn exclusively<T>(&mut self, change: impl FnOnce(&mut State) -> T) -> T {
        change(self)
    }
}

/// An upgradable lock: it keeps writers out and lets readers in.
pub(crate) struct Upgradable<'s>(Option<RwLockUpgradableReadGuard<'s, State>>);

impl<'s> Upgradable<'s> {
    pub(crate) fn new(guard: RwLockUpgradableReadGuard<'s, State>) -> Upgradable<'s> {
        Upgradable(Some(guard))
    }
}

impl Locked for Upgradable<'_> {
    const IS_EXCLUSIVE: bool = false;

    fn state(&self) -> &State {
        self.0.as_ref().expect("only `exclusively` is without it")
    }

    fn exclusively<T>(&mut self, change: impl FnOnce(&mut State) -> T) -> T {
        let guard = self.0.take().expect("only `exclusively` is without it");
        let mut locked = RwLockUpgradableReadGuard::upgrade(guard);
        let changed = change(&mut locked);
        self.0 = Some(RwLockWriteGuard::downgrade_to_upgradable(locked));
        changed
    }
}
