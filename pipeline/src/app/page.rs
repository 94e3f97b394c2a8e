//! The dashboard's page, built by npm from `dashboards/web` and embedded in the binary (SPEC E4).
//!
//! Files with a hash in their name may be cached for ever; the page itself is asked for anew each time. No other page may
//! show it in a frame, and nothing is read as another type than its own; what it may load is in its own `<meta>` policy.

use axum::{
    Router,
    extract::Path,
    http::{HeaderName, StatusCode, header},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use rust_embed::RustEmbed;

#[derive(RustEmbed)]
#[folder = "../dashboards/web/dist"]
#[allow_missing = true]
struct Assets;

/// A frame's policy counts only in a header; the page's `<meta>` cannot state it.
const GUARDS: [(HeaderName, &str); 3] = [
    (header::CONTENT_SECURITY_POLICY, "frame-ancestors 'none'"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

pub fn routes() -> Router {
    Router::new().route("/", get(index)).route("/assets/{*path}", get(asset)).route("/favicon.ico", get(favicon))
}

async fn index() -> Response {
    match Assets::get("index.html") {
        Some(page) => {
            let headers = [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
            (GUARDS, headers, page.data.into_owned()).into_response()
        }
        None => (
            StatusCode::NOT_FOUND,
            GUARDS,
            Html("<p>This binary was built without the page. Run <code>make web</code>, then build again.</p>"),
        )
            .into_response(),
    }
}

async fn favicon() -> StatusCode {
    StatusCode::NO_CONTENT
}

async fn asset(Path(path): Path<String>) -> Response {
    match Assets::get(&format!("assets/{path}")) {
        Some(file) => {
            let headers = [
                (header::CONTENT_TYPE, content_type(&path)),
                (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
            ];
            (GUARDS, headers, file.data.into_owned()).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("json" | "map") => "application/json",
        Some("woff2") => "font/woff2",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    use super::*;

    /// Scenario: the page is asked for. Guarantees: no other page may frame it, whether this binary has a page or not.
    #[tokio::test]
    async fn no_other_page_may_frame_it() {
        let request = Request::get("/").body(Body::empty()).expect("a request");
        let response = routes().oneshot(request).await.expect("an answer");
        assert_eq!(response.headers()["content-security-policy"], "frame-ancestors 'none'");
        assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    }
}
