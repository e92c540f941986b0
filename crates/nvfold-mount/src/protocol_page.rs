//! docs/semantics.md lists the FUSE protocol; its tables are held to the code here.

use crate::handshake::features;
use crate::options::{Cache, Options};
use nvfold_fuse::Operation;
use nvfold_fuse::handshake::ALWAYS;
use nvfold_fuse::operation::argument_bytes;
use nvfold_fuse::protocol::{InHeader, opcode};
use std::collections::BTreeMap;
use std::path::Path;

/// The requests of the protocol: 7 and 19 were never used, and 4096 begins the session of a character device.
const REQUESTS: [std::ops::RangeInclusive<u32>; 4] = [1..=6, 8..=18, 20..=53, 4096..=4096];
const FLAGS: u32 = 43;
const NOTICES: u32 = 9;

/// One row: the name, and what nvfold does.
type Row = (String, String);

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

/// Returns the rows of the table whose second column has this title, by the number in the first column.
fn table(title: &str) -> BTreeMap<u32, Row> {
    let page = read("docs/semantics.md");
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let is_head = |line: &&str| cells(line).get(2).is_some_and(|cell| cell == title);
    let lines = page.lines().skip_while(|line| !is_head(line)).skip(2).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells = cells(line);
        let number = match cells[1].strip_prefix("0x") {
            Some(hexadecimal) => u32::from_str_radix(hexadecimal, 16),
            None => cells[1].parse(),
        };
        (number.unwrap_or_else(|_| panic!("{line}")), (cells[2].clone(), cells[3].clone()))
    };
    let rows: Vec<(u32, Row)> = lines.map(row).collect();
    let (count, rows) = (rows.len(), rows.into_iter().collect::<BTreeMap<_, _>>());
    assert!(count > 0 && count == rows.len(), "{title}: {count} rows, {} numbers", rows.len());
    rows
}

/// Returns the numbers of the rows that say so.
fn numbers_with(rows: &BTreeMap<u32, Row>, said: &str, otherwise: &str) -> Vec<u32> {
    rows.values().for_each(|(name, what)| assert!([said, otherwise].contains(&&what[..]), "{name}: {what}"));
    rows.iter().filter(|(_, (_, what))| what == said).map(|(number, _)| *number).collect()
}

/// Returns the constants `pub const NAME: TYPE = VALUE;` of a module of the protocol, as they stand there.
fn constants(begin: &str, end: &str) -> Vec<(String, String)> {
    let source = read("crates/nvfold-fuse/src/protocol.rs");
    let module = source.split(begin).nth(1).unwrap().split(end).next().unwrap();
    let constant = |line: &str| {
        let (name, rest) = line.trim().strip_prefix("pub const ")?.split_once(": ")?;
        let value = rest.split_once(" = ")?.1.trim_end_matches(';');
        Some((name.to_owned(), value.to_owned()))
    };
    module.lines().filter_map(constant).collect()
}

/// What follows the argument of a request, aligned as the kernel aligns it.
#[repr(align(8))]
struct Names([u8; 8]);

/// Returns whether the code knows a request.
fn is_known(opcode: u32) -> bool {
    let (argument, names) = ([0; 128], Names(*b"a\0b\0c\0d\0"));
    let header = InHeader { opcode, nodeid: 1, ..InHeader::default() };
    let decoded = Operation::decode(&header, &argument[..argument_bytes(opcode)], &names.0);
    // The handshake is done before requests are decoded.
    opcode == opcode::INIT || !matches!(decoded.expect("the request is whole"), Operation::Unknown)
}

#[test]
fn the_page_lists_each_request_and_whether_it_is_answered() {
    let rows = table("request");
    assert_eq!(rows.keys().copied().collect::<Vec<_>>(), REQUESTS.into_iter().flatten().collect::<Vec<_>>());
    let answered = numbers_with(&rows, "answered", "ENOSYS");
    assert_eq!((0..=5000).filter(|opcode| is_known(*opcode)).collect::<Vec<_>>(), answered);
    let named = answered.iter().map(|number| (rows[number].0.clone(), number.to_string()));
    assert_eq!(constants("pub mod opcode {", "}"), named.collect::<Vec<_>>());
}

#[test]
fn the_page_lists_each_flag_and_whether_it_is_asked_for() {
    let rows = table("flag of INIT");
    assert_eq!(rows.keys().copied().collect::<Vec<_>>(), (0..FLAGS).collect::<Vec<_>>());
    let (with_idmap, without_cache) =
        (Options { idmap: true, ..Options::default() }, Options { cache: Cache::None, ..Options::default() });
    let asked = ALWAYS | features(&with_idmap, true) | features(&without_cache, true);
    let bits = numbers_with(&rows, "asked", "no");
    assert_eq!((0..64).filter(|bit| asked >> bit & 1 == 1).collect::<Vec<u32>>(), bits);
    let named = bits.iter().map(|bit| (rows[bit].0.clone(), format!("1 << {bit}")));
    assert_eq!(constants("pub mod feature {", "}"), named.collect::<Vec<_>>());
}

#[test]
fn the_page_lists_each_ioctl_and_notice_and_whether_it_is_used() {
    let rows = table("ioctl");
    let sources =
        ["device", "mount", "notices", "ring", "sys"].map(|file| read(&format!("crates/nvfold-fuse/src/{file}.rs")));
    let code = sources.concat().replace('_', "");
    let used = numbers_with(&rows, "used", "no");
    let in_code = |number: &&u32| code.contains(&format!("{number:#010x}"));
    assert_eq!(rows.keys().filter(in_code).copied().collect::<Vec<_>>(), used);
    // The type of all of them is 229, and their numbers have no gap.
    assert!(rows.keys().all(|number| number >> 8 & 0xff == 229));
    let mut numbers: Vec<u32> = rows.keys().map(|number| number & 0xff).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3]);

    let rows = table("notice");
    assert_eq!(rows.keys().copied().collect::<Vec<_>>(), (1..=NOTICES).collect::<Vec<_>>());
    let sent = constants("/// The numbers of notices", "/// The ring command");
    let sent: Vec<u32> = sent.iter().map(|(_, value)| value.parse().unwrap()).collect();
    assert_eq!(sent, numbers_with(&rows, "used", "no"));
}
