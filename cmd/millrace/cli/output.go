package cli

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"go.yaml.in/yaml/v3"
)

// The forms of -o. JSON is a stable contract with golden tests, and CSV has its
// numbers; the table is for people and may change.
var formats = []string{"table", "wide", "json", "ndjson", "yaml", "csv", "name"}

// A listing is a command's answer: values as JSON sees them, and the cells
// that a person sees. The first column is the name.
type listing struct {
	columns []column
	rows    [][]cell
	values  []any
}

type column struct {
	title string
	right bool // numbers stand on the right
	wide  bool // left out of a table unless it is to be wide
	csv   string
}

// left and right declare columns in short form.
func left(title string) column  { return column{title: title} }
func right(title string) column { return column{title: title, right: true} }

// more declares a column that only a wide table and CSV show.
func more(c column) column {
	c.wide = true
	return c
}

// named declares what the column is called in CSV, where that is not its title:
// with a number's unit, as JSON has it.
func (c column) named(csv string) column {
	c.csv = csv
	return c
}

// name is the column's in CSV.
func (c column) name() string {
	if c.csv != "" {
		return c.csv
	}
	return strings.ReplaceAll(strings.ToLower(c.title), " ", "_")
}

// add appends a row. A string is a word.
func (l *listing) add(value any, cells ...any) {
	var row []cell
	for _, c := range cells {
		if text, ok := c.(string); ok {
			c = word(text)
		}
		row = append(row, c.(cell))
	}
	l.values, l.rows = append(l.values, value), append(l.rows, row)
}

// print writes l in the form that was asked for.
func (l *listing) print(w io.Writer, format string) error {
	switch format {
	case "json":
		return printJSON(w, nonNil(l.values))
	case "ndjson":
		enc := json.NewEncoder(w)
		for _, v := range l.values {
			if err := enc.Encode(v); err != nil {
				return err
			}
		}
		return nil
	case "yaml":
		return printYAML(w, nonNil(l.values))
	case "csv":
		return l.printCSV(w)
	case "name":
		for _, row := range l.rows {
			if _, err := fmt.Fprintln(w, row[0].text); err != nil {
				return err
			}
		}
		return nil
	}
	return l.printTable(w, format == "wide")
}

func (l *listing) printCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	var names []string
	for _, c := range l.columns {
		names = append(names, c.name())
	}
	lines := [][]string{names}
	for _, row := range l.rows {
		var line []string
		for _, c := range row {
			line = append(line, c.plain)
		}
		lines = append(lines, line)
	}
	return out.WriteAll(lines)
}

func (l *listing) printTable(w io.Writer, wide bool) error {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Format.Header = text.FormatDefault // titles are upper case where they should be
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	t.SetStyle(style)
	header := table.Row{}
	var configs []table.ColumnConfig
	for _, c := range l.columns {
		if c.wide && !wide {
			continue
		}
		header = append(header, c.title)
		if c.right {
			configs = append(configs, table.ColumnConfig{Number: len(header), Align: text.AlignRight, AlignHeader: text.AlignRight})
		}
	}
	t.SetColumnConfigs(configs)
	t.AppendHeader(header)
	for _, cells := range l.rows {
		row := table.Row{}
		for i, cell := range cells {
			if wide || !l.columns[i].wide {
				row = append(row, cell.text)
			}
		}
		t.AppendRow(row)
	}
	for line := range strings.Lines(t.Render()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// printOne writes a single value: in a form for machines where one is asked for,
// else by show.
func printOne(w io.Writer, format string, value any, show func(io.Writer) error) error {
	switch format {
	case "json":
		return printJSON(w, value)
	case "ndjson":
		return json.NewEncoder(w).Encode(value)
	case "yaml":
		return printYAML(w, value)
	case "csv":
		return printFields(w, value)
	}
	return show(w)
}

// printYAML writes what JSON would, keys in the same order.
func printYAML(w io.Writer, value any) error {
	document, err := asYAML(value)
	if err != nil {
		return err
	}
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(document); err != nil {
		return err
	}
	return enc.Close()
}

// asYAML takes value through JSON, which is YAML, so that the fields' names and
// order are JSON's.
func asYAML(value any) (*yaml.Node, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	plain(&document)
	return &document, nil
}

// plain takes JSON's braces and quotes away where YAML needs none.
func plain(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0
	}
	for _, inner := range n.Content {
		plain(inner)
	}
}

// printFields writes a single value as CSV: a line for each field, those within
// others joined by dots.
func printFields(w io.Writer, value any) error {
	document, err := asYAML(value)
	if err != nil {
		return err
	}
	out := csv.NewWriter(w)
	if err := out.Write([]string{"field", "value"}); err != nil {
		return err
	}
	var fields func(prefix string, n *yaml.Node) error
	fields = func(prefix string, n *yaml.Node) error {
		if n.Kind == yaml.ScalarNode {
			return out.Write([]string{strings.TrimPrefix(prefix, "."), n.Value})
		}
		for i, inner := range n.Content {
			name := prefix
			switch n.Kind {
			case yaml.MappingNode:
				if i%2 == 0 {
					continue
				}
				name += "." + n.Content[i-1].Value
			case yaml.SequenceNode:
				name += "." + strconv.Itoa(i)
			}
			if err := fields(name, inner); err != nil {
				return err
			}
		}
		return nil
	}
	if err := fields("", document); err != nil {
		return err
	}
	out.Flush()
	return out.Error()
}

func printJSON(w io.Writer, value any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}

// nonNil makes an empty answer [] rather than null.
func nonNil(values []any) []any {
	if values == nil {
		return []any{}
	}
	return values
}

func checkFormat(format string) error {
	if slices.Contains(formats, format) {
		return nil
	}
	return usage("-o %s is no form of output", format).suggest("one of " + strings.Join(formats, ", "))
}
