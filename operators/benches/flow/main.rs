//! What the dataflow's operators cost, against plain programs that keep the same in hash maps.
//!
//! On one thread, with rows made before anything is timed: `alternate` takes batches in turns, dataflow then plain program
//! (load and cache views, and the windows of the request distribution), and compares what both came to; `history` times
//! the load view early and after ten times the rows; `paced` feeds it at a fixed rate, and looks at how late each epoch
//! closes; `soak` runs ten simulated days through all operators and watches the memory. `--quick` takes fewer epochs. The
//! last line is one JSON object with the bars and whether they are met.
mod alternate;
mod paced;
mod plain;
mod soak;
mod workload;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    // First, while nothing else has taken memory.
    let soak = soak::ten_days(if quick { 60 } else { 10 });
    let mut results = Vec::new();
    for size in [20_000, 200_000] {
        let epochs = if quick { 21 } else { 101 };
        results.extend(alternate::all(size, epochs).iter().map(alternate::Compared::json));
    }
    let history = paced::history(if quick { 1_000_000 } else { 4_000_000 });
    let paced = paced::paced(200_000, if quick { 3 } else { 10 });
    println!(
        r#"{{"bench":"flow","quick":{quick},"optimised":{},"alternate":[{}],"history":{history},"paced":{paced},"soak":{soak}}}"#,
        !cfg!(debug_assertions),
        results.join(","),
    );
}
