// Package main checks CustomResourceDefinitions as the API server of the oldest supported Kubernetes does when they are created.
// Each release estimates what rules in CEL cost, and refuses those that may cost too much; newer ones estimate lower.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: definitions FILE...")
		os.Exit(2)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	refused := false
	for _, file := range os.Args[1:] {
		if err := check(scheme, file); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
			refused = true
		}
	}
	if refused {
		os.Exit(1)
	}
}

func check(scheme *runtime.Scheme, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	written, definition := &v1.CustomResourceDefinition{}, &apiextensions.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, written); err != nil {
		return err
	}
	scheme.Default(written)
	if err := scheme.Convert(written, definition, nil); err != nil {
		return err
	}
	definition.Status.StoredVersions = []string{written.Spec.Versions[0].Name}
	return validation.ValidateCustomResourceDefinition(context.Background(), definition).ToAggregate()
}
