// Package main judges a board for Grafana. `dashboard BOARD DOCUMENT...` reads manifests on standard input, and fails if their ConfigMap does
// not have that board, or if it names a metric that no document names. It prints the expressions as rules, which promtool judges.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	kubernetes "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// By this label the sidecar of Grafana finds boards.
const label, found = "grafana_dashboard", "1"

type board struct {
	ID         *int
	UID        string
	Templating struct{ List []variable }
	Panels     []panel
}

type variable struct{ Type, Name, Definition string }

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct{ RefID, Expr string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
}

type rule struct {
	Record string `json:"record"`
	Expr   string `json:"expr"`
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: dashboard BOARD DOCUMENT... <MANIFESTS")
		os.Exit(2)
	}
	if err := judge(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func judge(path string, documents []string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var read board
	if err := json.Unmarshal(text, &read); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	known := map[string]bool{}
	for _, document := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			return err
		}
		for _, name := range regexp.MustCompile(`\bids_[a-z_]+`).FindAllString(string(text), -1) {
			known[name] = true
		}
	}
	problems := []error{rendered(text, kubernetes.NewYAMLReader(bufio.NewReader(os.Stdin)))}
	problem := func(format string, arguments ...any) { problems = append(problems, fmt.Errorf(format, arguments...)) }
	if read.ID != nil || read.UID == "" {
		problem("the board has an id, or no uid: Grafana gives ids, and finds a board by its uid")
	}
	for at, one := range read.Panels {
		for _, other := range read.Panels[at+1:] {
			if one.ID == other.ID {
				problem("two panels have the id %d: %q and %q", one.ID, one.Title, other.Title)
			}
			if a, b := one.GridPos, other.GridPos; a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				problem("panels overlap: %q and %q", one.Title, other.Title)
			}
		}
		if a := one.GridPos; a.X < 0 || a.Y < 0 || a.W < 1 || a.H < 1 || a.X+a.W > 24 {
			problem("panel %q is not within the 24 columns of a board", one.Title)
		}
		if one.Title == "" || one.Type != "row" && (one.Description == "" || one.FieldConfig.Defaults.Unit == "" || len(one.Targets) == 0) {
			problem("panel %d (%q) lacks a title, a description, a unit or an expression", one.ID, one.Title)
		}
	}
	rules := expressions(read)
	for _, rule := range rules {
		for _, metric := range metrics(rule.Expr) {
			if !known[metric] && !known[suffix.ReplaceAllString(metric, "")] {
				problem("%s names %s, which no document names as a metric", rule.Record, metric)
			}
		}
	}
	file, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(file)
	return errors.Join(append(problems, err)...)
}

// The ConfigMap has the board as it is in the file: what stands there in double braces is for Grafana.
func rendered(board []byte, manifests *kubernetes.YAMLReader) error {
	for {
		manifest, err := manifests.Read()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("no ConfigMap has the label %s: %q", label, found)
		} else if err != nil {
			return err
		}
		var object struct {
			Kind     string
			Metadata struct{ Labels map[string]string }
			Data     map[string]string
		}
		// Of other kinds, labels and data may be anything.
		if err := yaml.Unmarshal(manifest, &object); err != nil || object.Kind != "ConfigMap" || object.Metadata.Labels[label] != found {
			continue
		}
		for name, text := range object.Data {
			if len(object.Data) == 1 && strings.HasSuffix(name, ".json") && bytes.Equal([]byte(text), board) {
				return nil
			}
		}
		return errors.New("the ConfigMap does not have the board as it is in the file")
	}
}

// Each expression of a panel or a variable under a name that says where it stands, with values for what Grafana fills in.
func expressions(read board) []rule {
	values := strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h")
	var rules []rule
	for _, variable := range read.Templating.List {
		if selector := labelValues.FindStringSubmatch(variable.Definition); selector != nil {
			rules = append(rules, rule{"variable:" + variable.Name, selector[1]})
		} else if variable.Type == "query" {
			// promtool refuses it.
			rules = append(rules, rule{"variable:" + variable.Name, variable.Definition})
		}
	}
	for _, panel := range read.Panels {
		for _, target := range panel.Targets {
			rules = append(rules, rule{fmt.Sprintf("panel:%d:%s", panel.ID, target.RefID), values.Replace(target.Expr)})
		}
	}
	return rules
}

var (
	labelValues = regexp.MustCompile(`^label_values\((.+), *\w+\)$`)
	// What a histogram appends.
	suffix = regexp.MustCompile(`_(bucket|sum|count)$`)
	// What in an expression is no metric, though it has words.
	others = []*regexp.Regexp{
		regexp.MustCompile(`"(\\.|[^"\\])*"`),
		regexp.MustCompile(`\{[^}]*\}|\[[^\]]*\]`),
		regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)`),
		regexp.MustCompile(`\b(and|or|unless|bool|offset|group_left|group_right)\b`),
		regexp.MustCompile(`\w+\s*\(`),
		regexp.MustCompile(`\b[0-9]\w*`),
	}
)

// Names of metrics in an expression.
func metrics(expression string) []string {
	for _, other := range others {
		expression = other.ReplaceAllString(expression, " ")
	}
	return regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`).FindAllString(expression, -1)
}
