//! A request explained by a running server (SPEC X3).

use serde_json::json;
use tests::server::Server;

use super::completion;

async fn ask(server: &Server, id: &str) -> reqwest::Response {
    server.get(&format!("/v1/requests/{id}/explain")).await.unwrap()
}

/// Scenario: a completion is answered; its id is asked about at once, and again after the server was started anew on the same data; a
/// malformed request is asked about; an id that never was.
/// Guarantees: the answer has events, the decision with every candidate's terms, what was read, and the course in words; a refusal is
/// explained, too; memory and log answer the same; what is not there is a typed 404.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = Server::start_in(folder.path(), "").await else { return };
    let id_of =
        |response: &reqwest::Response| response.headers()["x-evenkeel-request-id"].to_str().unwrap().to_string();
    let response = server.post("/v1/completions", &completion("tell me why", 5)).await;
    let id = id_of(&response);
    assert_eq!(response.status(), 200);
    response.bytes().await.unwrap();
    let told: serde_json::Value = ask(&server, &id).await.json().await.unwrap();
    assert_eq!((told["request_id"].as_str(), told["state"].as_str()), (Some(id.as_str()), Some("finished")), "{told}");
    let decision = &told["decisions"][0];
    assert_eq!(decision["outcome"], "admit", "{told}");
    assert_eq!(decision["candidates"].as_array().unwrap().len(), 2, "{told}");
    for term in ["queue", "prefill", "fetch", "interference"] {
        for name in [format!("{term}_seconds"), format!("{term}_error_seconds")] {
            assert!(decision["candidates"][0][&name].is_number(), "{name} of {told}");
        }
    }
    let readings: Vec<_> =
        decision["inputs"].as_array().unwrap().iter().map(|input| input["reading"].as_str().unwrap()).collect();
    // What routing chose on arrival was reserved as it was.
    assert_eq!(readings, ["arrival"], "{told}");
    assert_eq!(decision["inputs"][0]["lease"], "reserved", "{told}");
    let summary = told["summary"].to_string();
    assert!(
        ["classed High", "routed to w", "first_token", "finished"].iter().all(|word| summary.contains(word)),
        "{summary}"
    );
    let refused = server.post("/v1/completions", &json!({"model": "tiny"})).await;
    let refused: serde_json::Value = ask(&server, &id_of(&refused)).await.json().await.unwrap();
    assert_eq!(refused["decisions"][0]["outcome"], "reject", "{refused}");
    let missing = ask(&server, "req-019b8d2f6c007000800000000000000a").await;
    assert_eq!(missing.status(), 404);
    let body: serde_json::Value = missing.json().await.unwrap();
    assert_eq!(body["error"]["code"], "request_not_found", "{body}");
    server.stop();
    let Some(server) = Server::start_in(folder.path(), "[bus]\nlive_rows = 1\n").await else { return };
    let again: serde_json::Value = ask(&server, &id).await.json().await.unwrap();
    assert_eq!(again, told);
}
