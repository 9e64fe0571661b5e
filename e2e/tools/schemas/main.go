// Package main writes the JSON schemas by which kubeconform judges manifests, one file a kind, from the OpenAPI document that a release
// of Kubernetes has: nothing is downloaded. A field that Kubernetes does not know is refused.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const prefix = "#/definitions/"

type object = map[string]any

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: schemas swagger.json FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(from, folder string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var document struct{ Definitions map[string]object }
	if err := json.Unmarshal(text, &document); err != nil {
		return err
	}
	for _, definition := range document.Definitions {
		strict(definition)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, definition := range document.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		// Several kinds are lists, options and other things that no manifest has.
		if len(kinds) != 1 {
			continue
		}
		kind := kinds[0].(object)
		used := map[string]object{}
		reach(name, document.Definitions, used)
		schema, err := json.Marshal(object{"$ref": prefix + name, "definitions": used})
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, file(kind)), schema, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// file is what kubeconform's {{.ResourceKind}}{{.KindSuffix}}.json says.
func file(kind object) string {
	parts := []string{kind["kind"].(string)}
	if group := kind["group"].(string); group != "" {
		parts = append(parts, strings.Split(group, ".")[0])
	}
	return strings.ToLower(strings.Join(append(parts, kind["version"].(string)), "-")) + ".json"
}

// strict refuses unknown fields, and takes numbers where the API server does although the document says "string".
func strict(value any) {
	switch value := value.(type) {
	case []any:
		for _, child := range value {
			strict(child)
		}
	case object:
		if _, is := value["properties"].(object); is && value["additionalProperties"] == nil {
			value["additionalProperties"] = false
		}
		if description, _ := value["description"].(string); value["format"] == "int-or-string" ||
			strings.HasPrefix(description, "Quantity is a fixed-point representation of a number.") {
			value["type"] = []any{"string", "number"}
			delete(value, "format")
		}
		for _, child := range value {
			strict(child)
		}
	}
}

// reach adds a definition and all that it refers to: some refer to themselves.
func reach(name string, definitions, used map[string]object) {
	if _, known := used[name]; known {
		return
	}
	used[name] = definitions[name]
	var refer func(any)
	refer = func(value any) {
		switch value := value.(type) {
		case []any:
			for _, child := range value {
				refer(child)
			}
		case object:
			if target, is := value["$ref"].(string); is {
				reach(strings.TrimPrefix(target, prefix), definitions, used)
			}
			for _, child := range value {
				refer(child)
			}
		}
	}
	refer(definitions[name])
}
