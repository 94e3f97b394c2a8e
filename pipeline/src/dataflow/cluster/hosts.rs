//! Addresses of the dataflow's processes, and the word they know each other by: a host file.
//!
//! ```text
//! # one address a line, process 0 first
//! key correct-horse-battery-staple
//! 10.0.0.1:2101
//! 10.0.0.2:2101
//! ```
//!
//! Invariant: anything but loopback needs a key (DESIGN §6). The key is sent as it is: it keeps strangers and stray connections out,
//! not eavesdroppers, so processes belong on a private network. Bound: [`PROCESSES_MAX`].

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

/// Processes of one dataflow.
pub const PROCESSES_MAX: usize = 64;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    pub addresses: Vec<SocketAddr>,
    pub key: String,
}

/// The host file will not do.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    #[error("cannot read host file {path:?}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("host file, line {line}: {text:?}; expected an address such as 10.0.0.1:2101, `key WORD`, or a comment")]
    Line { line: usize, text: String },
    #[error("host file: {0} addresses; expected 2 to {PROCESSES_MAX}")]
    Count(usize),
    #[error("host file: {0} twice; each process needs an address of its own")]
    Twice(SocketAddr),
    #[error("host file: {0} is no loopback address; add a line `key WORD` that only your processes know")]
    NoKey(SocketAddr),
    #[error("cannot find a free port for the dataflow: {0}")]
    Port(io::Error),
}

impl Hosts {
    /// Reads a host file.
    pub fn read(path: &Path) -> Result<Hosts, HostsError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| HostsError::Read { path: path.to_path_buf(), source })?;
        Hosts::parse(&text)
    }

    fn parse(text: &str) -> Result<Hosts, HostsError> {
        let mut hosts = Hosts { addresses: Vec::new(), key: String::new() };
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let wrong = || HostsError::Line { line: number + 1, text: line.to_string() };
            match line.split_once(char::is_whitespace) {
                None if line.is_empty() => {}
                Some(("key", word)) => hosts.key = word.trim().to_string(),
                _ => {
                    let address: SocketAddr = line.parse().map_err(|_| wrong())?;
                    if hosts.addresses.contains(&address) {
                        return Err(HostsError::Twice(address));
                    }
                    hosts.addresses.push(address);
                }
            }
        }
        if !(2..=PROCESSES_MAX).contains(&hosts.addresses.len()) {
            return Err(HostsError::Count(hosts.addresses.len()));
        }
        match hosts.addresses.iter().find(|address| !address.ip().is_loopback()) {
            Some(address) if hosts.key.is_empty() => Err(HostsError::NoKey(*address)),
            _ => Ok(hosts),
        }
    }

    /// `processes` on this machine, each with a loopback address of its own where the system has them, and free ports.
    pub fn local(processes: usize) -> Result<Hosts, HostsError> {
        let free = |number: usize| {
            let own = Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST) + number as u32);
            TcpListener::bind((IpAddr::V4(own), 0))
                .or_else(|_| TcpListener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), 0)))
                .map_err(HostsError::Port)
        };
        // All are held until each has its port, so that none is given out twice.
        let held = (0..processes).map(free).collect::<Result<Vec<_>, _>>()?;
        let addresses = held.iter().map(TcpListener::local_addr).collect::<Result<_, _>>().map_err(HostsError::Port)?;
        Ok(Hosts { addresses, key: uuid::Uuid::new_v4().to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: host files right and wrong.
    /// Guarantees: each refusal names the line or what is missing.
    #[test]
    fn files() {
        let refusal = |text: &str| Hosts::parse(text).unwrap_err().to_string();
        let hosts = Hosts::parse("# two\nkey a b\n127.0.0.1:1 # first\n\n10.0.0.1:2\n").unwrap();
        assert_eq!((hosts.key.as_str(), hosts.addresses.len()), ("a b", 2));
        assert!(refusal("127.0.0.1:1\n").contains("1 addresses"));
        assert!(refusal("127.0.0.1:1\n127.0.0.1:1\n").contains("twice"));
        assert!(refusal("127.0.0.1:1\nhost:2\n").contains("line 2"));
        assert!(refusal("127.0.0.1:1\n10.0.0.1:2\n").contains("key WORD"));
    }
}
