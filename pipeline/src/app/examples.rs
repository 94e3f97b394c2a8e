//! Examples that `--help` of each command ends with. A test runs each through the parser.

pub const ALL: &str = "\
Examples:
  evenkeel models pull smollm2-135m     fetch a model
  evenkeel doctor                       is this machine ready
  evenkeel serve                        gateway, workers, page at http://127.0.0.1:8080
  evenkeel top                          the fleet, live
  evenkeel sql                          a prompt over the live tables

Settings come from --config FILE, from variables such as EVENKEEL_SERVER__LISTEN, and from options. EVENKEEL_HOME is the folder of
models, data and history; EVENKEEL_URL and EVENKEEL_KEY are the server that the tools ask; EVENKEEL_LOG is the filter of log lines.";

pub const SERVE: &str = "\
Examples:
  evenkeel serve
  evenkeel serve --config fleet.toml --workers 4 --listen 127.0.0.1:8090
  evenkeel serve --model simulated
  evenkeel serve --model chat=file:smollm2-135m,workers:2 --model code=file:simulated,workers:1
  evenkeel serve --worker-url http://10.0.0.7:8000 --worker-url http://10.0.0.8:8000";

pub const DATAFLOW: &str = "\
Example, on the second host of two (the first runs `evenkeel serve --timely-hosts hosts`):
  evenkeel dataflow --process 1 --hosts hosts";

pub const MODELS: &str = "\
Examples:
  evenkeel models list
  evenkeel models pull smollm2-135m
  evenkeel models pull smollm2-135m --from downloads/smollm2-135m.gguf
  evenkeel models quality --config fleet.toml --text novel.txt";

pub const SQL: &str = "\
Examples:
  evenkeel sql                                             a prompt; \\? helps
  evenkeel sql \"select event, count(*) from requests group by event\"
  evenkeel sql --format csv \"select * from decisions\" > decisions.csv
  evenkeel sql --watch 2s \"select instance, running, waiting from instance_load order by as_of desc limit 4\"
  evenkeel sql --file report.sql
  evenkeel sql --saved                                     what is saved; then, for one of them:
  evenkeel sql --saved latency/ttft_by_tier --param minutes=60
  evenkeel sql --snapshot tuesday \"select count(*) from requests\"
  echo 'select count(*) from slo; select count(*) from faults' | evenkeel sql
  evenkeel sql --url http://gateway:8080 --key KEY \"select 1\"";

pub const SNAPSHOT: &str = "\
Examples:
  evenkeel snapshot --out tuesday
  evenkeel snapshot --remote --incremental
  evenkeel snapshot list
  evenkeel snapshot list --in s3://bucket/fleet";

pub const TOP: &str = "\
Examples:
  evenkeel top
  evenkeel top --sort kv --filter chat
  evenkeel top --url http://gateway:8080 --key KEY";

pub const DOCTOR: &str = "\
Examples:
  evenkeel doctor
  evenkeel doctor --config fleet.toml
  evenkeel doctor --json

Each line is ok, warn or fail, and what to do. With a fail the exit code is 1.";

pub const REPLAY_LOAD: &str = "\
Example:
  evenkeel replay-load --trace trace.jsonl --url http://127.0.0.1:8080";

pub const REPLAY: &str = "\
Examples:
  evenkeel replay --log data
  evenkeel replay --log data --policy other.toml --out other.parquet";

pub const CALIBRATE: &str = "\
Example:
  evenkeel calibrate --itl-max 100ms --out capacity.parquet";

pub const BENCH: &str = "\
Examples:
  evenkeel bench gateway --quick
  evenkeel bench mrc --trace conversation_trace.jsonl";

pub const COMPLETIONS: &str = "\
Examples:
  evenkeel completions bash > /etc/bash_completion.d/evenkeel
  evenkeel completions zsh > ~/.zfunc/_evenkeel
  evenkeel completions fish > ~/.config/fish/completions/evenkeel.fish";
