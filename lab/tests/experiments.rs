//! `nvfold-lab`: that every experiment runs, verifies what it wrote and reports what it says it does. Figures are
//! not looked at: these sizes give none.

use crate::common::{Run, Scratch};
use serde_json::Value;
use std::path::Path;

/// The figures of a paper that a run says it made.
fn figures_made(run: &Run) -> Vec<Value> {
    let report: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:#?}"));
    assert_eq!(report["version"], 2, "{run:#?}");
    report["figures"].as_array().unwrap().clone()
}

/// The figure of this id on a profile, of those that a run made.
fn figure_of(made: &[Value], id: &str, profile: &str) -> Value {
    let found = made.iter().find(|figure| figure["id"] == id && figure["profile"] == profile);
    found.unwrap_or_else(|| panic!("{id} on {profile}")).clone()
}

/// What we measured, in the row of a figure's table that says so.
fn row(figure: &Value, what: &str) -> f64 {
    let rows = figure["rows"].as_array().unwrap();
    let found = rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("{what} in {figure}"));
    found["ours"].as_f64().unwrap()
}

/// The page of a run, all of whose pictures are there.
fn page_in(out: &Path) -> String {
    let page = std::fs::read_to_string(out.join("README.md")).unwrap();
    for picture in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(|link| !link.contains('#'))
    {
        assert!(std::fs::metadata(out.join(picture)).is_ok_and(|file| file.len() > 100), "{picture} is there");
    }
    page
}

#[test]
fn paper_nv_dedup_makes_every_figure_and_one_page_of_three_profiles() {
    let scratch = Scratch::new();
    let (out, dir) = (scratch.path("out"), scratch.path(""));
    let run = |profiles: &str, figures: &str| {
        let arguments = ["--json", "paper", "nv-dedup", "--smoke", "--profile", profiles, "--figure", figures];
        let paths = ["--out", out.to_str().unwrap(), "--dir", dir.to_str().unwrap()];
        figures_made(&scratch.lab(&[&arguments[..], &paths].concat()).ok())
    };
    // What is run later joins what is there.
    let some = "table-4,6,7,table-5,10";
    let mut made = run("nvdimm-8x", "1,2,6,7,8,9,10,11,12,13,table-4,table-5,costs,dram,fio");
    made.extend(run("native,pcm", some));
    let figure = |id: &str, profile: &str| figure_of(&made, id, profile);
    for profile in ["nvdimm-8x", "native", "pcm"] {
        for id in ["figure-6", "figure-7", "figure-10", "table-4", "table-5"] {
            let figure = figure(id, profile);
            assert_eq!((&figure["version"], &figure["paper"]), (&2.into(), &"nv-dedup".into()));
            for chart in figure["charts"].as_array().unwrap() {
                let places = chart["x"].as_array().unwrap().len();
                for series in chart["series"].as_array().unwrap() {
                    let values = series["y"].as_array().unwrap();
                    assert_eq!(values.len(), places, "{id} on {profile}: {chart}");
                    // So few requests may leave a competitor's metadata where they are: there is no share of nothing.
                    let is_share = chart["y_label"].as_str().unwrap().contains("bytes") && id == "figure-7";
                    let is_value = |value: &Value| value.as_f64().map_or(is_share, |value| value >= 0.0);
                    assert!(values.iter().all(is_value), "{series}");
                }
            }
        }
        // What the methods that look at everything must find: the share is exact.
        let table = figure("table-4", profile);
        assert!(row(&table, "NV-Dedup (as in the paper): removed at 50 %") <= 50.0);
        let recovery = figure("table-5", profile);
        assert!(row(&recovery, "entries scanned at 50 %") >= 1.024, "half of 2048 blocks, in thousands");
    }
    let flushed = figure("figure-7", "nvdimm-8x");
    assert!(row(&flushed, "NV-Dedup (ours), largest share of Dedup_fine_grained's") > 0.0);
    for number in [1, 2, 8, 9, 11, 12, 13] {
        figure(&format!("figure-{number}"), "nvdimm-8x");
    }
    assert!(row(&figure("costs", "nvdimm-8x"), "c, writing a chunk") > 9.0, "what the profile charges, at least");
    // The index alone has 8 bytes a chunk; a figure without it is none.
    assert!(row(&figure("dram", "nvdimm-8x"), "DRAM for deduplication") > 4.0);
    let fio = figure("fio", "nvdimm-8x");
    let left_out = fio["left_out"].as_array().unwrap();
    if left_out.is_empty() {
        assert!(row(&fio, "inline to off") > 0.0 && row(&fio, "nv-dedup to off") > 0.0);
    } else {
        assert!(std::env::var_os("CI").is_none(), "the real fio: {left_out:?}");
        eprintln!("skipped: the real fio: {left_out:?}");
    }
    let page = page_in(&out);
    assert!(page.contains("nvdimm-8x/figure-6.svg") && page.contains("pcm/table-5.json"));
    let left: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["out"], "nothing else is left behind");
}

#[test]
fn a_resumed_paper_run_makes_only_the_figures_missing_for_this_commit() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let run = |commit: &str, figures: &str| {
        let command = [&format!("NVFOLD_COMMIT={commit}")[..], env!("CARGO_BIN_EXE_nvfold-lab"), "--json"];
        let paper = ["paper", "denova", "--smoke", "--resume", "--profile", "native", "--figure", figures];
        scratch.run("env", &[&command[..], &paper, &["--out", out.to_str().unwrap()]].concat())
    };
    let made = |commit: &str, figures: &str| -> Vec<String> {
        let figures = figures_made(&run(commit, figures).ok());
        figures.iter().map(|figure| format!("{}@{}", figure["id"], figure["commit"]).replace('"', "")).collect()
    };
    assert_eq!(made("one", "12"), ["figure-12@one"]);
    assert_eq!(made("one", "12,2"), ["figure-2@one"], "the other one is there");
    assert!(made("one", "12,2").is_empty());
    assert!(page_in(&out).contains("Commit of all figures: `one`."));
    assert_eq!(made("two", "12"), ["figure-12@two"], "of another commit");
    std::fs::remove_file(out.join("native/figure-2.json")).unwrap();
    assert_eq!(made("two", "12,2"), ["figure-2@two"]);
    run("", "12").fails(1, "NVFOLD_COMMIT");
}

#[test]
fn paper_denova_makes_every_figure_and_finds_every_duplicate() {
    let scratch = Scratch::new();
    let (out, tree) = (scratch.path("out"), scratch.path("tree"));
    std::fs::create_dir_all(tree.join("below")).unwrap();
    // Two files of three blocks and a half, one with a block of the other: 8 blocks, of which 7 differ.
    let block = |byte: u8| vec![byte; 4096];
    std::fs::write(tree.join("one"), [block(1), block(2), block(3), vec![4; 2048]].concat()).unwrap();
    std::fs::write(tree.join("below/two"), [block(2), block(5), block(6), vec![7; 2048]].concat()).unwrap();
    let run = |profiles: &str, figures: &str| {
        let arguments = ["--json", "paper", "denova", "--smoke", "--profile", profiles, "--figure", figures];
        let paths = ["--out", out.to_str().unwrap(), "--tree", tree.to_str().unwrap()];
        figures_made(&scratch.lab(&[&arguments[..], &paths].concat()).ok())
    };
    // What is run later joins what is there.
    let mut made = run("optane", "2,table-4,equations,trees,dram,fact");
    made.extend(run("optane", "8,savings,9"));
    made.extend(run("optane", "10,11,12,no-think"));
    made.extend(run("native", "8,savings,12"));
    let figure = |id: &str, profile: &str| figure_of(&made, id, profile);
    let values = |figure: &Value, chart: &str| -> Vec<(String, Vec<f64>)> {
        let charts = figure["charts"].as_array().unwrap();
        let found =
            charts.iter().find(|known| known["title"] == chart).unwrap_or_else(|| panic!("{chart} in {figure}"));
        let series = found["series"].as_array().unwrap().iter();
        let numbers = |series: &Value| series["y"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
        series.map(|series| (series["name"].as_str().unwrap().to_string(), numbers(series))).collect()
    };
    for id in ["figure-2", "figure-9", "figure-10", "figure-11", "table-4", "equations", "no-think", "dram", "fact"] {
        assert_eq!((&figure(id, "optane")["version"], &figure(id, "optane")["paper"]), (&2.into(), &"denova".into()));
    }
    for profile in ["optane", "native"] {
        let speed = values(&figure("figure-8", profile), "small files by the wall clock, MB/s");
        // Off twice, and three modes of both ways to tell equal blocks.
        assert_eq!(speed.len(), 8);
        assert!(speed.iter().all(|(_, rates)| rates.len() == 2 && rates.iter().all(|rate| *rate > 0.0)), "{speed:?}");
        for size in ["small files", "large files"] {
            for (system, saved) in values(&figure("savings", profile), size) {
                assert_eq!(saved, [100.0, 100.0], "{system}, {size}: all that is there twice is shared");
            }
        }
        assert_eq!(values(&figure("figure-12", profile), "Figure 12: reading a file whose blocks are shared").len(), 4);
    }
    let shared = values(&figure("trees", "optane"), &format!("blocks shared of {}", tree.display()));
    assert_eq!(shared.len(), 4);
    for (system, blocks) in shared {
        assert_eq!(blocks, [1.0, 9.0], "{system}");
    }
    for (n, taken) in values(&figure("figure-10", "optane"), "Figure 10: how long entries wait in the queue: ours") {
        assert!(taken.is_sorted() && taken.last() == Some(&100.0), "{n}: {taken:?}");
    }
    let fact = figure("fact", "optane");
    // A sixty-fourth for the chunk table; of a device this small one segment is a thirty-second.
    assert!((1.5..5.0).contains(&row(&fact, "chunk table and direct area, of the device")));
    assert!(row(&fact, "entries to places of the direct area when the device is full") > 80.0);
    let reads = row(&fact, "entries read for a block that is there, evenly drawn");
    assert!((1.0..2.0).contains(&reads), "{reads}");
    // Eight bytes a chunk at least.
    let dram = figure("dram", "optane");
    assert!(row(&dram, "dram index, process with denova less process with off") > 4.0);
    let locks = row(&dram, "pm index, its own account: locks, however many chunks there are");
    assert!(locks < 1e6, "{locks}");
    let page = page_in(&out);
    assert!(page.contains("optane/figure-8.svg") && page.contains("native/figure-12.json"));
}

#[test]
fn paper_deext_makes_every_figure_next_to_ext4() {
    let scratch = Scratch::new();
    let (out, tree) = (scratch.path("out"), scratch.path("tree"));
    std::fs::create_dir_all(tree.join("below")).unwrap();
    let content: Vec<u8> = (0..60_000u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    std::fs::write(tree.join("one"), &content).unwrap();
    std::fs::write(tree.join("below/two"), &content).unwrap();
    let arguments = ["--json", "paper", "deext", "--smoke", "--out", out.to_str().unwrap()];
    let run = scratch.lab(&[&arguments[..], &["--tree", tree.to_str().unwrap()]].concat()).ok();
    let made = figures_made(&run);
    for id in ["figure-8", "figure-9", "figure-10", "figure-11", "figure-12", "trees"] {
        let figure = figure_of(&made, id, "pcm");
        assert!(figure["charts"].as_array().is_some_and(|charts| !charts.is_empty()), "{figure}");
    }
    assert!(page_in(&out).contains("pcm/figure-12.json"));
    // The makers of ext4 may be missing, but not where nothing may be skipped.
    if !figure_of(&made, "figure-8", "pcm")["left_out"].as_array().unwrap().is_empty() {
        assert!(std::env::var_os("CI").is_none(), "{made:#?}");
        return;
    }
    let saved = |id: &str, what: &str| row(&figure_of(&made, id, "pcm"), what);
    let space = saved("figure-8", "DeEXT (as in the paper): space saved beside ext4");
    assert!((30.0..55.0).contains(&space), "the set is made so: {space} %");
    let fixed = saved("figure-8", "fixed-only: space saved beside ext4");
    assert!(fixed < space, "fixed pieces find less of shifted copies: {fixed} of {space} %");
    let written = saved("figure-9", "DeEXT (as in the paper): access latency saved, writing");
    assert!((written - space).abs() < 0.1 * space, "what is not stored is not written: {written} of {space} %");
    let compared = saved("figure-9", "DeEXT (ours): access latency saved, writing");
    assert!(compared < written, "comparing reads: {compared} of {written} %");
    let of_tree = saved("trees", &format!("{}, DeEXT (ours): space saved beside ext4", tree.display()));
    assert!((40.0..60.0).contains(&of_tree), "one of two files: {of_tree} %");
}

#[test]
fn the_benchmark_of_auto_compares_it_with_each_of_its_choices() {
    let scratch = Scratch::new();
    let run = scratch.lab(&["--json", "auto", "--smoke", "--profile", "native", "--out", "out"]).ok();
    let report = run.json();
    let rows = report["rows"].as_array().unwrap();
    // Phases, each under all fixed policies and with all preferences.
    assert_eq!(rows.len(), 8 * 7);
    assert!(rows.iter().all(|row| row["speed_ratio"].as_f64().unwrap() > 0.0), "{report}");
    let out = scratch.path("out");
    assert!(out.join("README.md").exists() && out.join("native.svg").exists());
}

#[test]
fn the_wear_benchmark_counts_every_line_with_and_without_levelling() {
    let scratch = Scratch::new();
    let run = scratch.lab(&["--json", "wear", "--smoke", "--out", "out"]).ok();
    let report = run.json();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4);
    for run in runs {
        let kinds = run["kinds"].as_array().unwrap();
        let writes: u64 = kinds.iter().map(|kind| kind["writes"].as_u64().unwrap()).sum();
        assert_eq!(Some(writes), run["lines_written"].as_u64(), "every line is of some kind: {run}");
        assert!(kinds.iter().all(|kind| kind["hottest"].as_u64() <= kind["writes"].as_u64()), "{run}");
        assert!(run["pools"]["most_to_mean"].as_f64().unwrap() >= 1.0, "{run}");
        assert!(run["lifetime_fulls"].as_f64().unwrap() > 0.0, "{run}");
    }
    let page = std::fs::read_to_string(scratch.path("out").join("README.md")).unwrap();
    assert!(page.contains("| TX_ID generators | yes |"), "{page}");
}

#[test]
fn the_reclaim_benchmark_on_a_nearly_full_device_loses_and_refuses_no_write() {
    let scratch = Scratch::new();
    let run = scratch.lab(&["--json", "reclaim", "--smoke", "--out", "out"]).ok();
    let report: Value = serde_json::from_str(&run.stdout).expect("a report");
    assert_eq!(report["version"], 2, "its times are the processor's since");
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2, "with a background and without");
    for run in runs {
        let figure = |name: &str| run[name].as_f64().unwrap();
        assert_eq!(run["no_space"], 0, "{run}");
        assert!(figure("written_bytes") >= report["device_bytes"].as_f64().unwrap(), "{run}");
        let live = figure("live_bytes") / (figure("live_bytes") + figure("available_bytes"));
        assert!((0.8..0.9).contains(&live), "{live} of {run}");
        assert!(figure("segments_emptied") > 0.0 && figure("megabytes_per_second") > 0.0, "{run}");
        assert!(figure("media_per_written") > 1.0 + figure("moved_per_written"), "what moves is written too: {run}");
        for latency in ["large_write", "small_write"].map(|name| &run[name]) {
            assert!(latency["writes"].as_u64() > Some(0) && latency["max_us"].as_f64() >= latency["p99_us"].as_f64());
        }
    }
    let page = std::fs::read_to_string(scratch.path("out").join("README.md")).unwrap();
    assert!(page.contains("| 80 % | no |"), "{page}");
}

/// A corpus of one package in two versions that differ by a byte in front, and of one file that is encoded.
fn make_corpus(folder: &Path) {
    let mut state = 1u64;
    let mut word = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    let encoded: Vec<u8> = (0..256 << 10).map(|_| word() as u8).collect();
    let words: Vec<Vec<u8>> =
        (0..300).map(|_| (0..4 + word() % 8).map(|_| b'a' + (word() % 26) as u8).collect()).collect();
    let text: Vec<u8> = (0..300_000).flat_map(|_| [&words[word() as usize % 300][..], b" "].concat()).collect();
    std::fs::create_dir_all(folder.join("versions/thing")).unwrap();
    std::fs::create_dir_all(folder.join("packages")).unwrap();
    std::fs::write(folder.join("versions/thing/1.tar"), &text).unwrap();
    std::fs::write(folder.join("versions/thing/2.tar"), [b"!", &text[..]].concat()).unwrap();
    std::fs::write(folder.join("packages/thing.gz"), &encoded).unwrap();
}

#[test]
fn chunkers_are_compared_on_the_corpus_and_the_check_with_lz4() {
    let scratch = Scratch::new();
    make_corpus(&scratch.path("corpus"));
    let report = scratch.lab(&["--json", "chunkers", "--smoke", "--corpus", "corpus", "--out", "out"]).ok().json();
    assert_eq!((&report["version"], &report["benchmark"]), (&Value::from(1), &Value::from("chunkers")));

    let speeds = report["speeds"].as_array().unwrap();
    assert_eq!(speeds.len(), 4, "made-up and real data, in the cache and in memory");
    for row in speeds.iter().flat_map(|speeds| speeds["rows"].as_array().unwrap()) {
        assert!(row["gigabytes_per_second"].as_f64().unwrap() > 0.0, "{row}");
    }
    let saved = |data: &str, chunker: &str| {
        let lists = ["savings", "savings_by_mean"].map(|list| report[list].as_array().unwrap());
        let savings = lists.into_iter().flatten().find(|savings| savings["data"] == data).unwrap();
        let row = savings["rows"].as_array().unwrap().iter().find(|row| row["chunker"] == chunker).unwrap();
        row["saved_percent"].as_f64().unwrap()
    };
    for data in ["thing", "all packages, 4 KiB", "all packages, 16 KiB"] {
        // A byte in front is what fixed pieces cannot take.
        assert!(saved(data, "fixed-16k") < 1.0, "{data}");
        for chunker in ["rabin", "ae", "gear", "fastcdc", "seqcdc"] {
            let saved = saved(data, chunker);
            assert!((40.0..50.0).contains(&saved), "{data}, {chunker}: {saved}");
        }
    }
    let check = &report["check"]["alone"];
    let counts = ["compressible", "missed", "incompressible", "false_alarms"].map(|what| check[what].as_u64().unwrap());
    assert!(counts[0] > 30 && counts[2] > 10 && counts[1] + counts[3] <= 2, "{check}");
    for (name, what) in [("chunkers.md", &b"# Chunkers\n"[..]), ("chunkers.svg", b"<svg"), ("chunkers.json", b"{")] {
        assert!(std::fs::read(scratch.path("out").join(name)).unwrap().starts_with(what), "{name}");
    }
}

#[test]
fn the_lookup_benchmark_measures_a_tree_and_both_indexes() {
    let scratch = Scratch::new();
    scratch.lab(&["lookups", "--smoke", "--out", "out"]).ok();
    let page = std::fs::read_to_string(scratch.path("out").join("lookups.md")).expect("the page");
    for index in ["red-black tree", "dram", "pm (FACT)"] {
        assert!(page.contains(&format!("| {index} | 2000 |")), "{page}");
    }
}

#[test]
fn the_origins_benchmark_measures_a_compaction_writes_and_the_compare() {
    let scratch = Scratch::new();
    let report = scratch.lab(&["--json", "origins", "--smoke", "--out", "out"]).ok().json();
    let rows = |name: &str| report[name].as_array().unwrap_or_else(|| panic!("no {name}"));
    let variants: Vec<&str> = rows("compactions").iter().map(|row| row["variant"].as_str().unwrap()).collect();
    assert_eq!(variants, ["ICID", "ICID_DO", "ICID_KA"]);
    for row in rows("compactions") {
        let figure = |name: &str| row[name].as_f64().unwrap();
        assert!(0.0 < figure("shared_bytes") && figure("shared_bytes") < figure("written_bytes"), "{row}");
        assert!(figure("extents") > 0.0 && figure("media_metadata_percent") > 0.0, "{row}");
        let stored = |stage: &str| row[stage]["stored_bytes"].as_u64().unwrap();
        assert!(stored("collected") < stored("removed") && stored("removed") <= stored("compacted"), "{row}");
    }
    let lanes = ["aligned", "unaligned", "unaligned, cold"].map(|lane| format!("origins, {lane}"));
    let plain = ["icid", "off", "inline"].map(|policy| format!("plain, {policy}"));
    let of_a_size: Vec<String> = lanes.into_iter().chain(plain).collect();
    let found: Vec<&str> = rows("writes").iter().map(|row| row["lane"].as_str().unwrap()).collect();
    assert_eq!(found, [of_a_size.as_slice(), of_a_size.as_slice()].concat());
    assert!(rows("writes").iter().all(|row| row["charged_ns"]["optane"].as_f64() > Some(0.0)));
    assert_eq!(rows("compares").len(), 5, "as many as the paper's Table 3 has");
    let page = std::fs::read_to_string(scratch.path("out").join("README.md")).expect("the page");
    for title in ["Aims", "metadata beside the paper's Table 6", "where an origin pays", "the paper's Table 3"] {
        assert!(page.contains(title), "{page}");
    }
}

#[test]
fn the_rec_tree_benchmark_measures_each_variant() {
    let scratch = Scratch::new();
    scratch.lab(&["rec-tree", "--smoke", "--out", "out"]).ok();
    let page = std::fs::read_to_string(scratch.path("out").join("README.md")).expect("the page");
    for row in ["| look-up of 4 KiB, nothing known |", "| Patch |", "| ICID_KA in the paper | 211.1 |"] {
        assert!(page.contains(row), "{page}");
    }
    let report = std::fs::read_to_string(scratch.path("out").join("rec-tree.json")).expect("the figures");
    assert!(report.contains("\"ICID_DO\"") && report.contains("\"found_bytes\""), "{report}");
}

#[test]
fn the_chunker_benchmark_reports_a_missing_corpus() {
    let run = Scratch::new().lab(&["chunkers", "--smoke", "--corpus", "nowhere"]);
    run.fails(1, "list nowhere/versions");
}

#[test]
fn the_profiles_experiment_compares_with_published_figures() {
    let scratch = Scratch::new();
    let report = scratch.lab(&["--json", "profiles", "--smoke", "--out", "out"]).ok().json();
    let deviations = report["rows"].as_array().unwrap().iter().map(|row| row["deviation_percent"].as_f64().unwrap());
    assert!(deviations.map(f64::abs).all(|percent| percent < 1.0), "{report}");
    let page = std::fs::read_to_string(scratch.path("out").join("README.md")).expect("the page");
    assert!(page.contains("Made by `nvfold-lab --json profiles --smoke --out out`"), "{page}");
}
