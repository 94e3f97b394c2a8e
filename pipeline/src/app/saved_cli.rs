//! What `evenkeel sql` asks, and of whom: a saved query by name, a snapshot instead of a server (SPEC E2, E3).

use std::fmt::Write;

use queries::saved::{self, Values};

#[derive(Debug, Clone, Default, clap::Args)]
pub struct Source {
    /// Run a saved query; without a name, list them
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["query", "file"])]
    pub saved: Option<String>,
    /// A parameter of the saved query; may be given several times
    #[arg(long = "param", value_name = "NAME=VALUE", requires = "saved", value_parser = pair)]
    pub parameters: Vec<(String, String)>,
    /// Ask a snapshot instead of a server: a folder or a URL, of one snapshot or of several, the newest of which is asked
    #[arg(long, value_name = "FOLDER_OR_URL")]
    pub snapshot: Option<String>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, as in minutes=15")?;
    Ok((name.to_string(), value.to_string()))
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// Print this list.
    List(String),
    /// Run this statement.
    Statement(String),
    /// Nothing was named.
    Open,
}

impl Source {
    /// What the options name, with the query that was given as it is.
    pub fn asked(&self, query: Option<&str>) -> anyhow::Result<Asked> {
        match (self.saved.as_deref(), query) {
            (Some(""), _) => Ok(Asked::List(list())),
            (Some(name), _) => {
                let values: Values = self.parameters.iter().cloned().collect();
                Ok(Asked::Statement(saved::find(name)?.render(&values)?))
            }
            (None, Some(query)) => Ok(Asked::Statement(query.to_string())),
            (None, None) => Ok(Asked::Open),
        }
    }
}

/// All saved queries, a line each, with their parameters.
fn list() -> String {
    let mut text = String::new();
    let width = saved::all().iter().map(|query| query.name.len()).max().unwrap_or(0);
    for query in saved::all() {
        let parameters: Vec<_> = query
            .parameters
            .iter()
            .map(|parameter| format!("{}={}", parameter.name, parameter.default.as_deref().unwrap_or("…")))
            .collect();
        let parameters = if parameters.is_empty() { String::new() } else { format!("  [{}]", parameters.join(" ")) };
        let _ = writeln!(text, "{:width$}  {}{parameters}", query.name, query.question);
    }
    text.trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(saved: &str, parameters: &[(&str, &str)]) -> Source {
        let parameters = parameters.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Source { saved: Some(saved.to_string()), parameters, snapshot: None }
    }

    /// Scenario: no name, a name with a parameter, a name that is none, a parameter that is none, a plain query, nothing.
    /// Guarantees: a list with every query; the statement with the value in it; errors that name what there is.
    #[test]
    fn saved_queries_by_name() {
        let Asked::List(list) = source("", &[]).asked(None).unwrap() else { panic!("a list") };
        assert_eq!(list.lines().count(), saved::all().len());
        assert!(list.contains("latency/ttft_by_tier") && list.contains("[minutes=15]"), "{list}");
        let asked = source("latency/ttft_by_tier", &[("minutes", "7")]).asked(None).unwrap();
        assert!(matches!(&asked, Asked::Statement(text) if text.contains("interval '7 minutes'")), "{asked:?}");
        let error = source("ttft_by_tier", &[]).asked(None).unwrap_err().to_string();
        assert!(error.contains("did you mean \"latency/ttft_by_tier\"?"), "{error}");
        let error = source("latency/ttft_by_tier", &[("hours", "7")]).asked(None).unwrap_err().to_string();
        assert!(error.contains("has no parameter \"hours\"; it has minutes"), "{error}");
        let plain = Source::default();
        assert_eq!(plain.asked(Some("select 1")).unwrap(), Asked::Statement("select 1".into()));
        assert_eq!(plain.asked(None).unwrap(), Asked::Open);
        assert!(pair("minutes").is_err());
        assert_eq!(pair("a=b=c").unwrap(), ("a".to_string(), "b=c".to_string()));
    }
}
