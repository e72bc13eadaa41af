package cli

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// The forms of -o. JSON is a stable contract with golden tests; the table is
// for people and may change.
var formats = []string{"table", "json", "ndjson", "csv", "name"}

// A listing is a command's answer: values as JSON sees them, and the cells
// that a person sees. The first column is the name.
type listing struct {
	columns []column
	rows    [][]string
	values  []any
}

type column struct {
	title string
	right bool // numbers stand on the right
}

// left and right declare columns in short form.
func left(title string) column  { return column{title: title} }
func right(title string) column { return column{title: title, right: true} }

func (l *listing) add(value any, cells ...string) {
	l.values, l.rows = append(l.values, value), append(l.rows, cells)
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
	case "csv":
		return l.printCSV(w)
	case "name":
		for _, row := range l.rows {
			if _, err := fmt.Fprintln(w, row[0]); err != nil {
				return err
			}
		}
		return nil
	}
	return l.printTable(w)
}

func (l *listing) printCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	var titles []string
	for _, c := range l.columns {
		titles = append(titles, strings.ToLower(c.title))
	}
	if err := out.Write(titles); err != nil {
		return err
	}
	return out.WriteAll(l.rows)
}

func (l *listing) printTable(w io.Writer) error {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Format.Header = text.FormatDefault // titles are upper case where they should be
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	t.SetStyle(style)
	header := table.Row{}
	var configs []table.ColumnConfig
	for i, c := range l.columns {
		header = append(header, c.title)
		if c.right {
			configs = append(configs, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
		}
	}
	t.SetColumnConfigs(configs)
	t.AppendHeader(header)
	for _, cells := range l.rows {
		row := table.Row{}
		for _, cell := range cells {
			row = append(row, cell)
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

// printOne writes a single value: JSON where a machine asked, else by show.
func printOne(w io.Writer, format string, value any, show func(io.Writer) error) error {
	switch format {
	case "json":
		return printJSON(w, value)
	case "ndjson":
		return json.NewEncoder(w).Encode(value)
	}
	return show(w)
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
