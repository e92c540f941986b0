//! The examples of the library do what they say.

#[allow(dead_code)] // `main`
#[path = "../examples/clone.rs"]
mod clone;
#[allow(dead_code)]
#[path = "../examples/custom_policy.rs"]
mod custom_policy;
#[allow(dead_code)]
#[path = "../examples/open.rs"]
mod open;

#[test]
fn the_example_that_opens_a_device_finds_what_it_left_there() {
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("pool");
    for times in 1..=3 {
        assert_eq!(open::count_opening(&device).unwrap(), times);
    }
}

#[test]
fn the_example_that_clones_takes_no_data_until_the_clone_is_changed() {
    let told = clone::clone_a_tree().unwrap();
    assert_eq!(told, "tree: 8192 KiB; with its clone: 8192 KiB; after a change: 8196 KiB");
}

#[test]
fn the_example_with_a_policy_of_its_own_shares_text_alone() {
    assert_eq!(custom_policy::store_twice().unwrap(), (4096, 8192));
}
