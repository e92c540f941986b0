//! The layout of a mounted device, which can be made longer.
//!
//! The problem: all that works on a mounted device asks its [`Geometry`] for places, at every access, and a longer device
//! has another one.
//!
//! The idea: a geometry never changes. A longer one is appended behind it, and who asks gets the last one. All parts of a
//! mount share one list. A longer geometry has all places of the one before, so that a reader may go on with an older
//! one until it meets a block that this does not know; it is appended when no operation is under way that could.
//!
//! ```text
//! Layout (Store, Space, Chunks, ...) -> geometry at mount -> longer -> longer
//! ```
//!
//! Tables in DRAM have room for [`Layout::segments_max`] segments from the beginning, in memory that the host backs where
//! it is touched.

use super::SEGMENT_BYTES;
use super::superblock::Geometry;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// The layout of a mounted device; see the module. A clone is the same one.
#[derive(Clone, Debug)]
pub struct Layout {
    first: Arc<LayoutStep>,
    segments_max: u64,
}

#[derive(Debug)]
struct LayoutStep {
    geometry: Geometry,
    longer: OnceLock<Box<LayoutStep>>,
}

impl LayoutStep {
    fn new(geometry: Geometry) -> LayoutStep {
        LayoutStep { geometry, longer: OnceLock::new() }
    }

    #[cold]
    fn last(&self) -> &LayoutStep {
        let mut step = self;
        while let Some(longer) = step.longer.get() {
            step = longer;
        }
        step
    }
}

impl Layout {
    /// Makes the layout of a device that can become `device_bytes_max` bytes long while it is mounted.
    pub(crate) fn new(geometry: Geometry, device_bytes_max: u64) -> Layout {
        let segments_max = geometry.segments().max(device_bytes_max.div_ceil(SEGMENT_BYTES));
        Layout { first: Arc::new(LayoutStep::new(geometry)), segments_max }
    }

    /// Returns how many segments the device can have while it is mounted: tables in DRAM have room for them.
    pub(crate) fn segments_max(&self) -> u64 {
        self.segments_max
    }

    /// Appends the layout of the longer device. One thread does that at a time.
    pub(crate) fn lengthen(&self, geometry: Geometry) {
        assert!(geometry.segments() <= self.segments_max && geometry.device_bytes > self.device_bytes);
        let appended = self.first.last().longer.set(Box::new(LayoutStep::new(geometry)));
        assert!(appended.is_ok(), "two threads make one device longer");
    }
}

impl Deref for Layout {
    type Target = Geometry;

    #[inline]
    fn deref(&self) -> &Geometry {
        match self.first.longer.get() {
            None => &self.first.geometry,
            Some(longer) => &longer.last().geometry,
        }
    }
}

/// The layout of a device that keeps its length.
impl From<Geometry> for Layout {
    fn from(geometry: Geometry) -> Layout {
        Layout::new(geometry, geometry.device_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_clones_of_a_layout_know_the_longer_one() {
        let of = |mib: u64| Geometry::of(mib << 20).unwrap();
        let layout = Layout::new(of(16), 64 << 20);
        let (other, before) = (layout.clone(), &*layout);
        assert_eq!((layout.segments_max(), other.segments()), (32, 8));
        layout.lengthen(of(32));
        assert_eq!((*other, *before), (of(32), of(16)));
        other.lengthen(of(64));
        assert_eq!(*layout, of(64));
        assert_eq!(Layout::from(of(16)).segments_max(), 8);
    }
}
