//! All tests of the planner but the exhaustive searches, as one program: nineteen of them took minutes to link.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says where")]

mod admission;
mod bad_input;
mod breakers;
mod clocks;
mod compatibility;
mod course;
mod departures;
mod failures;
mod gate_originals;
mod gates;
mod guide;
mod health_checkers;
mod hostile_input;
mod in_place;
mod in_place_world;
mod placement;
mod pod_gates;
mod pod_security;
mod properties;
mod room;
mod scenarios;
mod schedule;
mod step;
mod world;
