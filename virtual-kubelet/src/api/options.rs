//! What clients may say in the query of a request; no I/O.

use std::time::Duration;

use jiff::Timestamp;

/// Names and values of a query, decoded.
pub type Query = Vec<(String, String)>;

/// Decodes the query of a URL.
pub fn query(text: &str) -> Query {
    form_urlencoded::parse(text.as_bytes()).into_owned().collect()
}

fn first<'a>(query: &'a Query, name: &str) -> Option<&'a str> {
    query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
}

/// Which of a container's streams a log is asked for.
///
/// ```
/// use virtual_kubelet::api::LogStreams;
///
/// let shown = |streams, stderr: bool| match streams {
///     LogStreams::All => true,
///     LogStreams::Stdout => !stderr,
///     LogStreams::Stderr => stderr,
/// };
/// assert!(shown(LogStreams::default(), true) && !shown(LogStreams::Stdout, true));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogStreams {
    /// Both.
    #[default]
    All,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// From when on entries of a log are wanted.
///
/// ```
/// use jiff::Timestamp;
/// use virtual_kubelet::api::Since;
///
/// /// Whether an entry of the time `at` is wanted.
/// fn is_wanted(at: Timestamp, since: Since, now: Timestamp) -> bool {
///     match since {
///         Since::Time(time) => at >= time,
///         Since::Ago(ago) => now.checked_sub(ago).is_ok_and(|time| at >= time),
///     }
/// }
/// let now = Timestamp::now();
/// assert!(is_wanted(now, Since::Ago(std::time::Duration::from_secs(60)), now));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// That long before now.
    Ago(Duration),
    /// From this moment on.
    Time(Timestamp),
}

/// What a client wants of a log.
///
/// ```
/// use virtual_kubelet::api::{LogOptions, LogStreams};
///
/// // kubectl logs --follow --tail 10
/// let options = LogOptions { tail: Some(10), follow: true, ..LogOptions::default() };
/// assert_eq!((options.streams, options.limit_bytes), (LogStreams::All, None));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Only so many lines from the end.
    pub tail: Option<u64>,
    /// At most so many bytes.
    pub limit_bytes: Option<u64>,
    /// Only what is not older.
    pub since: Option<Since>,
    /// Goes on with what is written later, until the container ends.
    pub follow: bool,
    /// The run before the present one.
    pub previous: bool,
    /// Each line begins with its time.
    pub timestamps: bool,
    /// Which streams.
    pub streams: LogStreams,
}

/// A boolean as Go reads it.
fn boolean(query: &Query, name: &str) -> Result<bool, String> {
    match first(query, name) {
        None | Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
        Some(other) => Err(format!("could not parse {name:?}: {other:?} is not a boolean")),
    }
}

fn number(query: &Query, name: &str, least: i64) -> Result<Option<u64>, String> {
    let Some(text) = first(query, name) else { return Ok(None) };
    let value: i64 = text.parse().map_err(|error| format!("could not parse {name:?}: {error}"))?;
    if value < least {
        return Err(format!("{name:?} is {value}"));
    }
    Ok(u64::try_from(value).ok())
}

/// Reads the options of a log; the error is what the client is told, with 400.
pub fn log_options(query: &Query) -> Result<LogOptions, String> {
    // Clients before "tailLines" said "tail", and "all" for no limit.
    let tail = match first(query, "tail") {
        Some("all") => None,
        Some(_) => number(query, "tail", 0)?,
        None => number(query, "tailLines", 0)?,
    };
    let ago = number(query, "sinceSeconds", 1)?.map(|seconds| Since::Ago(Duration::from_secs(seconds)));
    let time = match first(query, "sinceTime") {
        Some(text) => {
            let time: Timestamp = text.parse().map_err(|error| format!("could not parse \"sinceTime\": {error}"))?;
            Some(Since::Time(time))
        }
        None => None,
    };
    if ago.is_some() && time.is_some() {
        return Err("both \"sinceSeconds\" and \"sinceTime\" are set".into());
    }
    let streams = match first(query, "stream") {
        None | Some("All") => LogStreams::All,
        Some("Stdout") => LogStreams::Stdout,
        Some("Stderr") => LogStreams::Stderr,
        Some(other) => return Err(format!("invalid stream type {other:?}")),
    };
    Ok(LogOptions {
        tail,
        limit_bytes: number(query, "limitBytes", 1)?,
        since: ago.or(time),
        follow: boolean(query, "follow")?,
        previous: boolean(query, "previous")?,
        timestamps: boolean(query, "timestamps")?,
        streams,
    })
}

/// Which streams a client wants of a command or container.
#[allow(clippy::struct_excessive_bools, reason = "four parameters of a query, each on its own")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// The client sends input.
    pub stdin: bool,
    /// The client wants output.
    pub stdout: bool,
    /// The client wants errors apart.
    pub stderr: bool,
    /// The client wants a terminal.
    pub tty: bool,
}

/// Reads which streams are wanted; the error is what the client is told, with 400.
pub fn stream_options(query: &Query) -> Result<StreamOptions, String> {
    let set = |name: &str| first(query, name) == Some("1");
    let options = StreamOptions { stdin: set("input"), stdout: set("output"), stderr: set("error"), tty: set("tty") };
    if options.tty && options.stderr {
        return Err("tty and stderr cannot both be true".into());
    }
    if !options.stdin && !options.stdout && !options.stderr {
        return Err("you must specify at least one of stdin, stdout, stderr".into());
    }
    Ok(options)
}

/// The words of a command.
pub fn command(query: &Query) -> Vec<String> {
    query.iter().filter(|(name, _)| name == "command").map(|(_, value)| value.clone()).collect()
}

/// The ports that a client of the older protocol names in the query; the error is what the client is told, with 400.
pub fn ports(query: &Query) -> Result<Vec<u16>, String> {
    let given: Vec<&str> = query.iter().filter(|(name, _)| name == "port").flat_map(|(_, value)| value.split(',')).collect();
    if given.is_empty() {
        return Err("query parameter \"port\" is required".into());
    }
    let port = |text: &&str| {
        let port: u16 = text.parse().map_err(|_| format!("unable to parse {text:?} as a port"))?;
        if port == 0 { Err(format!("port {text:?} must be > 0")) } else { Ok(port) }
    };
    given.iter().map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(text: &str) -> Result<LogOptions, String> {
        log_options(&query(text))
    }

    #[test]
    fn log_options_are_read_and_bad_ones_are_named() {
        assert_eq!(logs(""), Ok(LogOptions::default()));
        assert_eq!(
            logs("tailLines=100&limitBytes=1&follow=true&previous=t&timestamps=1&stream=Stderr"),
            Ok(LogOptions {
                tail: Some(100),
                limit_bytes: Some(1),
                follow: true,
                previous: true,
                timestamps: true,
                streams: LogStreams::Stderr,
                since: None
            })
        );
        assert_eq!(logs("tailLines=0").unwrap().tail, Some(0));
        assert_eq!(logs("tail=5").unwrap().tail, Some(5));
        assert_eq!(logs("tail=all&tailLines=7").unwrap().tail, None);
        assert_eq!(logs("sinceSeconds=10").unwrap().since, Some(Since::Ago(Duration::from_secs(10))));
        let time = "2020-03-20T09:07:12Z".parse().unwrap();
        assert_eq!(logs("sinceTime=2020-03-20T09%3A07%3A12Z").unwrap().since, Some(Since::Time(time)));
        for (text, name) in [
            ("tailLines=-1", "tailLines"),
            ("tailLines=many", "tailLines"),
            ("limitBytes=0", "limitBytes"),
            ("sinceSeconds=-10", "sinceSeconds"),
            ("sinceSeconds=0", "sinceSeconds"),
            ("sinceTime=yesterday", "sinceTime"),
            ("sinceSeconds=10&sinceTime=2020-03-20T09:07:12Z", "both"),
            ("follow=yes", "follow"),
            ("previous=2", "previous"),
            ("timestamps=on", "timestamps"),
            ("stream=stdin", "stream"),
            ("tailLines=99999999999999999999", "tailLines"),
        ] {
            assert!(logs(text).unwrap_err().contains(name), "{text}");
        }
    }

    #[test]
    fn a_client_chooses_streams_but_no_stderr_beside_a_terminal() {
        let options = |text: &str| stream_options(&query(text));
        assert_eq!(options("input=1&output=1&tty=1"), Ok(StreamOptions { stdin: true, stdout: true, stderr: false, tty: true }));
        assert_eq!(options("error=1"), Ok(StreamOptions { stderr: true, ..StreamOptions::default() }));
        assert!(options("output=1&error=1&tty=1").is_err());
        assert!(options("").is_err());
        assert!(options("output=true").is_err());
        assert_eq!(command(&query("command=echo&command=a%20b&output=1")), ["echo", "a b"]);
    }

    #[test]
    fn ports_of_the_older_protocol_are_repeated_or_comma_separated() {
        let ports = |text: &str| ports(&query(text));
        assert_eq!(ports("port=80"), Ok(vec![80]));
        assert_eq!(ports("port=80,81&port=82"), Ok(vec![80, 81, 82]));
        for text in ["", "port=", "port=0", "port=65536", "port=-1", "port=http", "port=1,,2"] {
            assert!(ports(text).is_err(), "{text}");
        }
    }
}
