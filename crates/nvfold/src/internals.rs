//! Names of inner rooms that leave the crate for its tests, the fuzz targets and the laboratory alone: they read and
//! damage what is on the media, and measure single parts. No promise is made about any of them, and no front end may
//! use them (`tests/tests/tidy.rs`).
//!
//! A module and not a cargo feature: a feature is either on for the whole workspace, and then hides nothing from the
//! front ends, or builds everything a second time for the tests.

#[cfg(not(feature = "shuttle"))]
pub use nvfold_sync::{locked_instructions, number_this_thread};

/// Chunk entries and the two indexes.
pub mod chunk {
    pub mod dram {
        pub use crate::chunk::dram::DramIndex;
    }
    pub mod entries {
        pub use crate::chunk::entries::Entries;
    }
    pub mod fact {
        pub use crate::chunk::fact::Fact;
    }
}

/// Where pieces are cut.
pub mod chunking {
    #[cfg(feature = "papers")]
    pub use crate::chunking::content_defined;
    pub use crate::chunking::{Compressibility, Cutter, Verdict, is_zero, pieces};
}

/// The three layers of a mount: types whose methods stay inside, so that a test can see what does not compile.
pub mod layers {
    pub use crate::fs::Core;
    pub use crate::jobs::Jobs;
    pub use crate::store::Store;
}

/// Policies by themselves.
pub mod dedup {
    pub use crate::dedup::NvDedup;
}

/// The functions.
pub mod fingerprint {
    pub use crate::fingerprint::{Strong, weak, weak64};
}

/// The bytes on the device.
pub mod media {
    pub use crate::media::{BlockNumber, Location, PackedNumber, SEGMENT_BLOCKS, SEGMENT_BYTES};

    pub mod chunk_entry {
        pub use crate::media::chunk_entry::{
            CLASS_END, CLASS_LOST, ChunkEntry, CountWord, ENTRY_BYTES, LINKS_WORD, STRONG_VALID, address_word, tag,
        };
    }
    pub mod direct {
        pub use crate::media::direct::{BEGUN, DIRECT_BYTES, DirectEntry, index_segments, prefix_bits};
    }
    pub mod generator {
        pub use crate::media::generator::{SEQUENCE_END, tx_id};
    }
    pub mod inode {
        pub use crate::media::inode::{
            ATTRIBUTE_LINES, AttributeLine, IN_USE, INLINE_LOG, INODE_BYTES, INODES_PER_SEGMENT, InodeHead,
            OVERFLOW_WORD, PARENT_WORD, USE_WORD,
        };
    }
    pub mod journal {
        pub use crate::media::journal::{JOURNAL_SLOTS, JOURNAL_WORDS, JournalSlot, WordStore};
    }
    pub mod limits {
        pub use crate::media::limits::{TREE_LIMITS, TreeLimits};
    }
    pub mod location_word {
        pub use crate::media::location_word::LocationWord;
    }
    pub mod log_area {
        pub use crate::media::log_area::{AREA_LOG, AREAS_MAX, AreaHead, NEXT_WORD};
    }
    pub mod log_entry {
        pub use crate::media::log_entry::{
            ENTRY_BYTES_MAX, ExtentEntry, LINE, LogEntry, NAME_OFFSET, PAGE_LINES, PageFooter, SYMLINK_TARGET,
            XattrValue, dedupe,
        };
    }
    pub mod packed {
        pub use crate::media::packed::{HEADER_BYTES, HEADERS_MAX, PackedHeader, header_offset};
    }
    pub mod saved_state {
        pub use crate::media::saved_state::{SAVED_RUNS, SEGMENT_RECORD_WORDS, SavedRun, SavedState};
    }
    pub mod segment {
        pub use crate::media::segment::{KIND_BLOCKS, KIND_ENTRIES, KIND_FREE, KIND_PACKED, SegmentEntry, SegmentUse};
    }
    pub mod superblock {
        pub use crate::media::superblock::{
            COMPRESSED_CHUNKS, COPIES, Geometry, LAST_COPY, LIMITS, LOG_AREAS, PACKED_CHUNKS, STATE_CLEAN,
            STATE_IN_USE, STATE_REPAIR, TABLE_GAPS, TREES, VECTOR_ENTRIES, VERSION, ZONES,
        };
    }
    pub mod zone {
        pub use crate::media::zone::ZONES_MAX;
    }
    pub mod vector_entry {
        pub use crate::media::vector_entry::{Named, RECORDS_MAX, VectorEntry};
    }
}
