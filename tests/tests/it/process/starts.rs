//! Starts that cannot work, and starts after an end.

use std::{fs, net::TcpListener, path::Path, process::Command};

use serde_json::json;
use tests::server::{Server, binary, free_port};

use super::completion;

/// Runs `evenkeel serve` and returns what it says as it fails.
fn refusal(arguments: &[&str], environment: &[(&str, &str)]) -> Option<String> {
    let flight = format!("127.0.0.1:{}", free_port());
    // A start that works after all would never end: it is stopped, and its exit code tells.
    let output = Command::new("timeout")
        .arg("30")
        .arg(binary()?)
        .args(["serve", "--flight-listen", &flight, "--pg-listen", "off"])
        .args(if arguments.contains(&"--model") { &[][..] } else { &["--model", "simulated"][..] })
        .args(arguments)
        .envs(environment.iter().copied())
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "it must not start: {text}");
    assert!(!text.contains("panicked"), "{text}");
    Some(text)
}

fn with_settings(folder: &Path, settings: &str) -> String {
    let file = folder.join("settings.toml");
    fs::write(&file, settings).unwrap();
    file.display().to_string()
}

/// Scenario: an unknown key, a value of the wrong type, values that contradict each other, a port in use, a data folder that
/// cannot be written, a model nobody knows, a file that is no model.
/// Guarantees: each start fails at once and says which setting, which value and what would be right.
#[test]
fn wrong_starts_say_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data").display().to_string();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = taken.local_addr().unwrap().to_string();
    let blocked = folder.path().join("file");
    fs::write(&blocked, "not a folder").unwrap();
    let below = blocked.join("data").display().to_string();
    let broken = folder.path().join("broken.gguf");
    fs::write(&broken, b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0").unwrap();
    let broken = broken.display().to_string();
    let unknown = with_settings(folder.path(), "[workers]\nthread = 2\n");
    let variants = |name: &str, settings: &str| {
        let file = folder.path().join(name);
        fs::write(&file, format!("[[model.variants]]\nname = \"int8\"\n{settings}")).unwrap();
        file.display().to_string()
    };
    let order = variants("order.toml", "[policy.variants]\nby_tier = { high = [\"int9\"] }\n");
    let tenant = variants("tenant.toml", "[policy.variants.by_tenant]\nlocale = [\"int8\"]\n");
    let key = variants("key.toml", "arithmetik = \"f32\"\n");
    let cases: [(&[&str], &[&str]); 11] = [
        (&["--config", &order, "--data-dir", &data], &["by_tier.high = int9", "did you mean `int8`?"]),
        (&["--config", &tenant, "--data-dir", &data], &["by_tenant = locale", "did you mean `local`?"]),
        (&["--config", &key, "--data-dir", &data], &["arithmetik", "did you mean `model.variants.arithmetic`?"]),
        (&["--variant", "q8=weight:q8_0", "--data-dir", &data], &["unknown key `weight`", "did you mean `weights`?"]),
        (&["--config", &unknown, "--data-dir", &data], &["unknown key `workers.thread`", "workers.threads"]),
        (&["--workers", "0", "--data-dir", &data], &["workers.count = 0", "1 to 256"]),
        (&["--listen", &busy, "--data-dir", &data], &[&busy, "server.listen", "another process"]),
        (&["--listen", "0.0.0.0:0", "--data-dir", &data], &["server.listen", "requires keys"]),
        (&["--data-dir", &below], &["data"]),
        (&["--model", "smollm3-135m", "--data-dir", &data], &["smollm3-135m", "smollm2-135m"]),
        (&["--model", &broken, "--data-dir", &data], &["broken.gguf", "tensor"]),
    ];
    for (arguments, words) in cases {
        let Some(text) = refusal(arguments, &[]) else { return };
        for word in words {
            assert!(text.contains(word), "{arguments:?} should say {word:?}: {text}");
        }
    }
    let text = refusal(&["--data-dir", &data], &[("EVENKEEL_SQL__ROWS_MAX", "0")]).unwrap();
    assert!(text.contains("sql.rows_max = 0"), "{text}");
}

/// Scenario: a server answers a request, is stopped, and a new one starts on the same data folder; a third tries the folder
/// while the second has it.
/// Guarantees: the rows of the first life are in SQL, new ones come behind them; the third is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_keeps_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    let Some(first) = Server::start_in(folder.path(), "").await else { return };
    let response = first.post("/v1/completions", &completion("before", 8)).await;
    assert_eq!(response.status(), 200);
    first.until("select 1 as one from requests where event = 'finished'", |rows| rows.len() == 1).await;
    first.stop();
    let second = Server::start_in(folder.path(), "").await.unwrap();
    assert_eq!(second.sql("select event from requests where event = 'finished'").await.len(), 1);
    assert_eq!(second.post("/v1/completions", &completion("after", 8)).await.status(), 200);
    second.until("select event from requests where event = 'finished'", |rows| rows.len() == 2).await;
    let data = folder.path().join("data").display().to_string();
    let text = refusal(&["--listen", "127.0.0.1:0", "--data-dir", &data], &[]).unwrap();
    assert!(text.contains("data") && text.contains("another"), "{text}");
    let snapshot = second.post("/snapshots", &json!({})).await;
    assert_eq!(snapshot.status(), 200);
    let made: serde_json::Value = snapshot.json().await.unwrap();
    let path = format!("/snapshots/{}/requests.parquet", made["name"].as_str().unwrap());
    assert!(second.get(&path).await.unwrap().bytes().await.unwrap().starts_with(b"PAR1"));
    assert_eq!(second.get("/snapshots/1/..%2Fsecret").await.unwrap().status(), 404);
}
