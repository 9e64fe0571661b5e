// Package main judges the objects of the Prometheus Operator in manifests on standard input, of which Kubernetes' own schemas know
// nothing. It fails if there is a field that their types do not have.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	kubernetes "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := judge(kubernetes.NewYAMLReader(bufio.NewReader(os.Stdin))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func judge(manifests *kubernetes.YAMLReader) error {
	for {
		manifest, err := manifests.Read()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var head struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal(manifest, &head); err != nil {
			return err
		}
		if head.APIVersion != "monitoring.coreos.com/v1" {
			continue
		}
		var known any
		switch head.Kind {
		case monitoring.PodMonitorsKind:
			known = &monitoring.PodMonitor{}
		case monitoring.PrometheusRuleKind:
			known = &monitoring.PrometheusRule{}
		default:
			return fmt.Errorf("nothing judges a %s", head.Kind)
		}
		if err := yaml.UnmarshalStrict(manifest, known); err != nil {
			return fmt.Errorf("%s: %w", head.Kind, err)
		}
	}
}
