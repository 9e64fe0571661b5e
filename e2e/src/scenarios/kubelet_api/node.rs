//! What is asked about the node, who may ask, and the end of its pods.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::session::{Said, Session};

pub async fn figures(session: &mut Session<'_>) -> Result<()> {
    let words = ["get", "--raw", "/api/v1/nodes/n1/proxy/stats/summary"];
    let said = session.quiet(&words, "").await?;
    let summary: Value = serde_json::from_str(&said.stdout).context("reading the summary")?;
    let empty = Vec::new();
    let pods = summary["pods"].as_array().unwrap_or(&empty);
    let mut lines: Vec<String> = vec![format!("node {}", summary["node"]["nodeName"].as_str().unwrap_or_default())];
    let mut names: Vec<String> = pods
        .iter()
        .filter(|pod| pod["containers"].as_array().is_some_and(|containers| !containers.is_empty()))
        .filter(|pod| pod["podRef"]["name"] != "crash")
        .map(|pod| {
            let measured = pod["containers"][0]["memory"]["workingSetBytes"].as_u64() > Some(0);
            format!(
                "pod {} with {} container, memory measured: {measured}",
                pod["podRef"]["name"],
                pod["containers"].as_array().map_or(0, Vec::len)
            )
        })
        .collect();
    names.sort();
    lines.extend(names);
    session.note(&words, "", &Said { code: said.code, stdout: lines.join("\n"), stderr: said.stderr });
    let words = ["get", "--raw", "/api/v1/nodes/n1/proxy/metrics/resource"];
    let said = session.quiet(&words, "").await?;
    let lines = said.stdout.lines().filter(|line| line.contains("\"web\"") || line.starts_with("# TYPE"));
    let lines: Vec<&str> =
        lines.map(|line| if line.starts_with('#') { line } else { line.rsplitn(3, ' ').last().unwrap_or_default() }).collect();
    session.note(&words, "", &Said { code: said.code, stdout: lines.join("\n"), stderr: said.stderr });
    let words = ["get", "--raw", "/api/v1/nodes/n1/proxy/pods"];
    let said = session.quiet(&words, "").await?;
    let list: Value = serde_json::from_str(&said.stdout).context("reading the pods")?;
    let names: BTreeSet<&str> =
        list["items"].as_array().unwrap_or(&empty).iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    let names = names.into_iter().collect::<Vec<_>>().join("\n");
    session.note(&words, "", &Said { code: said.code, stdout: names, stderr: said.stderr });
    session.run(&["get", "--raw", "/api/v1/nodes/n1/proxy/nothing"]).await?;
    session.run(&["delete", "pod", "elsewhere"]).await
}

/// What the API server did with requests to upgrade: hand them on, or translate them to SPDY.
pub async fn transports(session: &mut Session<'_>) -> Result<()> {
    let metrics = session.quiet(&["get", "--raw", "/metrics"], "").await?.stdout;
    let counted = metrics.lines().filter(|line| line.contains("websocket_streaming_requests_total{"));
    let counted: Vec<&str> = counted.filter_map(|line| line.split(['{', '}']).nth(1)).collect();
    ensure!(!counted.is_empty(), "the API server counts no WebSockets");
    session.remark(&format!("the API server has seen WebSockets: {}", counted.join("; ")));
    Ok(())
}

/// Those who are not the API server ask the node itself.
pub async fn strangers(session: &mut Session<'_>) -> Result<()> {
    let address = session.bed.address("n1")?;
    let (server, authority) = (format!("--server=https://{address}:10250"), session.bed.control_plane.authority());
    let authority = format!("--certificate-authority={}", authority.display());
    let token = session.quiet(&["create", "token", "default"], "").await?.stdout;
    for (who, token) in [("nobody", "unknown"), ("the service account default/default", token.trim())] {
        let said = session
            .quiet(&["--kubeconfig=/dev/null", &server, &authority, &format!("--token={token}"), "get", "--raw", "/pods"], "")
            .await?;
        session.remark(&format!("{who} asks the node for its pods"));
        session.note(&["get", "--raw", "/pods"], "", &said);
    }
    Ok(())
}

pub async fn delete(session: &mut Session<'_>) -> Result<()> {
    // Far less than the 600 s of its spec.
    let began = std::time::Instant::now();
    session.run(&["delete", "pod", "stubborn", "--grace-period=1"]).await?;
    ensure!(began.elapsed() < Duration::from_mins(2), "a grace period of 1 s took {:?}", began.elapsed());
    session.run(&["get", "pod", "stubborn"]).await
}

pub async fn drain(session: &mut Session<'_>) -> Result<()> {
    let words = ["drain", "n1", "--force", "--delete-emptydir-data", "--grace-period=1", "--timeout=60s"];
    let mut said = session.quiet(&words, "").await?;
    // In whatever order they went.
    let sorted = |text: &str| {
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    let warned = said.stderr.lines().map(|line| {
        let (head, names) = line.split_once(": default/").unwrap_or((line, ""));
        let mut names: Vec<&str> = names.split(", ").map(|name| name.trim_start_matches("default/")).collect();
        names.sort_unstable();
        format!("{head}: {}", names.join(", "))
    });
    said.stderr = sorted(&warned.collect::<Vec<_>>().join("\n"));
    said.stdout = sorted(&said.stdout);
    session.note(&words, "", &said);
    session.run(&["get", "pods"]).await?;
    session.run(&["uncordon", "n1"]).await
}
