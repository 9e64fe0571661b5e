package main

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// kstatus prints what Helm and Flux take an object in a file for: a word and a message.
func kstatus(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		return err
	}
	result, err := status.Compute(object)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s\n", result.Status, result.Message)
	return nil
}
