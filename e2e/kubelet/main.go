// Package main is the kubelet of Kubernetes, for machines of the test bed. It is a module of its own: what it needs beside the control
// plane's modules is large, and only who runs the bed with real kubelets builds it.
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() { os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background()))) }
