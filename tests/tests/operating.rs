//! The pages on operating nvfold: their commands are run, each page from its first command to its last.
//!
//! [`nvfold_tests::pages`] says how a page speaks to its test. A page below docs/operating has a test here, or one in
//! [`ELSEWHERE`].

use nvfold_tests::{pages, requires};
use std::collections::BTreeSet;

/// Pages that another test runs, and which.
const ELSEWHERE: [(&str, &str); 5] = [
    ("exit-codes", "crates/nvfold-cli/tests/scripting.rs"),
    ("grow", "tests/tests/grow.rs"),
    ("install", "tests/packages.sh, which installs and removes what the page says, in a namespace"),
    ("monitoring", "tests/tests/metrics.rs"),
    ("service", "tests/newcomer.sh, under a real systemd"),
];

/// Makes a test for each page, by its name.
macro_rules! pages_are_run {
    ($($test:ident => $page:literal),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                requires!(root, fuse, tool("unshare"));
                pages::run(concat!("docs/operating/", $page, ".md"));
            }
        )*

        #[test]
        fn every_page_on_operating_has_a_test() {
            let elsewhere = ELSEWHERE.iter().map(|(page, _)| *page);
            let tested: BTreeSet<String> = [$($page),*].into_iter().chain(elsewhere).map(str::to_owned).collect();
            let folder = pages::repository().join("docs/operating");
            let files = std::fs::read_dir(folder).expect("list the pages").flatten();
            let name = |file: std::fs::DirEntry| file.file_name().to_str()?.strip_suffix(".md").map(str::to_owned);
            assert_eq!(tested, files.filter_map(name).collect::<BTreeSet<String>>());
        }
    };
}

pages_are_run! {
    the_page_on_backups_works => "backup",
    the_page_on_memory_works => "memory",
    the_page_on_moving_works => "move",
    the_page_on_restoring_works => "restore",
    the_page_on_uninstalling_works => "uninstall",
    the_page_on_upgrades_works => "upgrade",
}
