//! A real `evenkeel serve` in a process of its own, on free ports and an empty data folder, with the small test model.
//!
//! It ends when the value drops. State: one folder, removed at the end.

use std::{
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use engine::model::tiny::tiny_llama_gguf;
use serde_json::{Value, json};

/// How long a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The binary under test; `None` after printing why.
pub fn binary() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let built = test.parent()?.parent()?.join("evenkeel");
    if !built.exists() {
        println!("SKIPPED (no binary {}: run `cargo build --workspace`)", built.display());
        return None;
    }
    Some(built)
}

/// A free port of the loopback address. Another process may take it before it is used; then the start fails by name.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// A running server.
pub struct Server {
    pub url: String,
    pub address: String,
    pub folder: PathBuf,
    /// Removed with everything in it, unless the folder was given.
    _owned: Option<tempfile::TempDir>,
    child: Child,
}

impl Server {
    /// Starts with settings in TOML (merged over the defaults) and waits until it is ready. `None`: no binary.
    pub async fn start(settings: &str) -> Option<Server> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_path_buf();
        let mut server = Server::start_in(&path, settings).await?;
        server._owned = Some(folder);
        Some(server)
    }

    /// The same in a folder that outlives the server.
    pub async fn start_in(folder: &Path, settings: &str) -> Option<Server> {
        let model = folder.join("tiny.gguf");
        Server::start_models(folder, settings, &[model.display().to_string()]).await
    }

    /// The same with these values of `--model`; the test model is `tiny.gguf` in the folder.
    pub async fn start_models(folder: &Path, settings: &str, models: &[String]) -> Option<Server> {
        fs::write(folder.join("tiny.gguf"), tiny_llama_gguf(7)).expect("the model");
        let models: Vec<String> = models.iter().map(|model| format!("--model={model}")).collect();
        Server::start_with(folder, settings, &models).await
    }

    /// With these arguments besides those for ports, settings and folder.
    pub async fn start_with(folder: &Path, settings: &str, arguments: &[String]) -> Option<Server> {
        Server::start_command(Command::new(binary()?), (folder, settings), arguments).await
    }

    /// With the test model, as the last arguments of another command.
    pub async fn start_wrapped(folder: &Path, settings: &str, wrapper: &[&str]) -> Option<Server> {
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).arg(binary()?);
        let model = folder.join("tiny.gguf");
        fs::write(&model, tiny_llama_gguf(7)).expect("the model");
        Server::start_command(command, (folder, settings), &[format!("--model={}", model.display())]).await
    }

    async fn start_command(
        mut command: Command,
        (folder, settings): (&Path, &str),
        arguments: &[String],
    ) -> Option<Server> {
        let config = folder.join("evenkeel.toml");
        fs::write(&config, settings).expect("the settings");
        let address = format!("127.0.0.1:{}", free_port());
        let child = command
            // Tests share the machine, and what they ask by SQL is not to wait for the others.
            .env("EVENKEEL_SQL__NICENESS", "0")
            .args(["serve", "--listen", &address, "--flight-listen", &format!("127.0.0.1:{}", free_port())])
            .args(["--pg-listen", "off"])
            .arg("--config")
            .arg(&config)
            .args(arguments)
            .arg("--data-dir")
            .arg(folder.join("data"))
            .stdout(Stdio::null())
            .stderr(File::create(folder.join("serve.log")).expect("a log file"))
            .spawn()
            .expect("the server starts");
        let mut server =
            Server { url: format!("http://{address}"), address, folder: folder.to_path_buf(), _owned: None, child };
        server.ready().await;
        Some(server)
    }

    async fn ready(&mut self) {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("the process can be asked") {
                panic!("the server ended with {status}: {}", self.log());
            }
            if self.get("/ready").await.is_ok_and(|response| response.status() == 200) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the server did not get ready: {}", self.log());
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote to stderr.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("serve.log")).unwrap_or_default()
    }

    pub async fn get(&self, path: &str) -> reqwest::Result<reqwest::Response> {
        client().get(format!("{}{path}", self.url)).send().await
    }

    pub async fn post(&self, path: &str, body: &Value) -> reqwest::Response {
        client().post(format!("{}{path}", self.url)).json(body).send().await.expect("an answer")
    }

    /// Rows of a query.
    pub async fn sql(&self, query: &str) -> Vec<Value> {
        let response = self.post("/sql", &json!({"query": query})).await;
        let (status, body) = (response.status(), response.text().await.expect("a body"));
        assert_eq!(status, 200, "{query}: {body}");
        serde_json::from_str(&body).expect("rows")
    }

    /// Asks until the query has rows for which `done` holds.
    pub async fn until(&self, query: &str, done: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let started = Instant::now();
        loop {
            let rows = self.sql(query).await;
            if done(&rows) {
                return rows;
            }
            assert!(started.elapsed() < PATIENCE, "{query} stayed {rows:?}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Asks it to end, and waits.
    pub fn stop(mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client with no limits of its own.
pub fn client() -> reqwest::Client {
    // A second installation is refused and changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}
