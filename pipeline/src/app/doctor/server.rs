//! A running server's own health, if one answers. None is no fault: the doctor is asked before the first start, too.

use std::time::Duration;

use serde_json::Value;

use super::Finding;
use crate::app::remote::Server;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Parts in a lesser mode that are named.
const PARTS_SHOWN: usize = 3;

pub async fn ask(server: &Server) -> Vec<Finding> {
    let get = |path: &str| server.request(reqwest::Method::GET, path).timeout(PATIENCE).send();
    let answer = match get("/ready").await {
        Ok(answer) => answer,
        Err(error) if error.is_connect() => {
            return vec![Finding::ok("server", format!("none answers at {}", server.url))];
        }
        Err(error) if error.is_builder() => {
            return vec![Finding::fail(
                "server",
                format!("{}: not an address", server.url),
                "give --url as in http://127.0.0.1:8080",
            )];
        }
        Err(_) => {
            let found = format!("{} took the connection and said nothing for {PATIENCE:?}", server.url);
            return vec![Finding::fail("server", found, "its stderr says what it does; if nothing, restart it")];
        }
    };
    let ready: Option<Value> = answer.json().await.ok();
    let metrics = match get("/metrics").await {
        Ok(answer) => answer.text().await.unwrap_or_default(),
        Err(_) => String::new(),
    };
    match ready {
        Some(ready) => judge(&server.url, &ready, &metrics),
        None => {
            let found = format!("{} answers, but is no evenkeel", server.url);
            vec![Finding::warn("server", found, "give --url the address of one, or leave it")]
        }
    }
}

/// `ready`: body of /ready.
fn judge(url: &str, ready: &Value, metrics: &str) -> Vec<Finding> {
    let (Some(serving), Some(views)) = (ready["serving"].as_u64(), ready["views"].as_str()) else {
        return vec![Finding::warn(
            "server",
            format!("{url} answers, but is no evenkeel"),
            "give --url the address of one",
        )];
    };
    let instances = ready["instances"].as_array().map_or(0, Vec::len) as u64;
    let found = format!("{url}: {serving} of {instances} instances serve, views are {views}");
    let serves = match serving {
        0 => Finding::fail(
            "server",
            found,
            "`evenkeel sql \"select at, name, state, detail from instances order by at desc\"` says why",
        ),
        _ if serving < instances => Finding::warn("server", found, "table instances says what the others wait for"),
        _ => Finding::ok("server", found),
    };
    let lesser: Vec<&str> = metrics.lines().filter_map(|line| line.strip_prefix("evenkeel_mode_degraded{")).collect();
    if lesser.is_empty() {
        return vec![serves];
    }
    let parts: Vec<&str> = lesser.iter().take(PARTS_SHOWN).map(|line| line.split('}').next().unwrap_or(line)).collect();
    let found = format!("{} parts in a lesser mode: {}", lesser.len(), parts.join("; "));
    vec![
        serves,
        Finding::warn("server", found, "docs/operations.md says what is done meanwhile, docs/alerts.md what to do"),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::Status, *};

    /// Scenario: a server that is well, half up, down, degraded, and something else on its port.
    /// Guarantees: each gets its status.
    #[test]
    fn health_is_judged() {
        let ready = |serving: u64| json!({"serving": serving, "views": "exact", "instances": [{}, {}]});
        let status =
            |ready: &Value, metrics: &str| judge("u", ready, metrics).iter().map(|f| f.status).collect::<Vec<_>>();
        assert_eq!(status(&ready(2), ""), [Status::Ok]);
        assert_eq!(status(&ready(1), ""), [Status::Warn]);
        assert_eq!(status(&ready(0), ""), [Status::Fail]);
        let metrics = "evenkeel_mode_degraded{component=\"log\",subject=\"\",mode=\"faulted\"} 1\n";
        assert_eq!(status(&ready(2), metrics), [Status::Ok, Status::Warn]);
        assert!(judge("u", &ready(2), metrics)[1].found.contains("mode=\"faulted\""));
        for other in [json!({}), json!([1]), json!({"serving": "two"})] {
            assert_eq!(status(&other, ""), [Status::Warn], "{other}");
        }
    }

    /// Scenario: nobody listens; the address is none. Guarantees: the first is fine, the second is a fault.
    #[tokio::test]
    async fn no_server_is_no_fault() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let at = Server::at;
        // Port 1 of the loopback address is nobody's.
        assert_eq!(ask(&at("http://127.0.0.1:1")).await[0].status, Status::Ok);
        assert_eq!(ask(&at("not an address")).await[0].status, Status::Fail);
    }
}
