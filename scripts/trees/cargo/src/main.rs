use clap::Parser;
use serde::Serialize;

const EDITION: u32 = 0;

#[derive(Parser, Serialize)]
struct Arguments {
    #[arg(default_value = "one two three")]
    text: String,
}

fn main() {
    let arguments = Arguments::parse();
    let words = regex::Regex::new(r"\w+").expect("it is an expression").find_iter(&arguments.text).count();
    let said = serde_json::json!({ "edition": EDITION, "words": words, "arguments": arguments });
    println!("{said}");
}
