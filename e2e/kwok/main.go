// Package main is KWOK's controller, the yardstick of `bed bench fleet`: KWOK's own command, together with the fast stages that
// its release carries, which it otherwise takes from a cluster or from a file. KWOK is under the Apache License 2.0,
// https://sigs.k8s.io/kwok.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kwok/kustomize/stage/node/fast"
	heartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	pods "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	"sigs.k8s.io/kwok/pkg/config"
	"sigs.k8s.io/kwok/pkg/kwok/cmd"
	"sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/signals"
)

func main() {
	if err := run(signals.SetupSignalContext()); err != nil {
		fmt.Fprintln(os.Stderr, "kwok:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	stages, err := writeStages()
	if err != nil {
		return err
	}
	os.Args = append(os.Args, "--config="+stages)

	// Verbosity and configuration are read before the command, which takes its defaults from them, knows its own flags.
	early := pflag.NewFlagSet("kwok", pflag.ContinueOnError)
	early.ParseErrorsAllowlist.UnknownFlags = true
	early.Usage = func() {}
	ctx, _ = log.InitFlags(ctx, early)
	ctx, err = config.InitFlags(ctx, early)
	os.Remove(stages)
	if err != nil {
		return err
	}
	command := cmd.NewCommand(ctx)
	command.PersistentFlags().AddFlagSet(early)
	return command.ExecuteContext(ctx)
}

// What upstream's kustomize/stage/fast consists of.
func writeStages() (string, error) {
	file, err := os.CreateTemp("", "kwok-stages-*.yaml")
	if err != nil {
		return "", err
	}
	defer file.Close()
	stages := []string{
		fast.DefaultNodeInit, heartbeat.DefaultNodeHeartbeatWithLease,
		pods.DefaultPodReady, pods.DefaultPodComplete, pods.DefaultPodDelete,
	}
	_, err = file.WriteString(strings.Join(stages, "\n---\n"))
	return file.Name(), err
}
