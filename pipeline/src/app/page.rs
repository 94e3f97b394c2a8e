//! The dashboard's page, built by npm from `dashboards/web` and embedded in the binary (SPEC E4).
//!
//! Files with a hash in their name may be cached for ever; the page itself is asked for anew each time.

use axum::{
    Router,
    extract::Path,
    http::{StatusCode, header},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use rust_embed::RustEmbed;

#[derive(RustEmbed)]
#[folder = "../dashboards/web/dist"]
#[allow_missing = true]
struct Assets;

pub fn routes() -> Router {
    Router::new().route("/", get(index)).route("/assets/{*path}", get(asset)).route("/favicon.ico", get(favicon))
}

async fn index() -> Response {
    match Assets::get("index.html") {
        Some(page) => {
            let headers = [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
            (headers, page.data.into_owned()).into_response()
        }
        None => (
            StatusCode::NOT_FOUND,
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
            (headers, file.data.into_owned()).into_response()
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
