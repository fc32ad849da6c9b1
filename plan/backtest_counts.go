package plan

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/service"
)

// ReadCounts reads actual counts over time from CSV. The header must contain minute (since 1970) or
// at (RFC 3339), model, region and replicas; gpu is optional. A count applies until the next one of
// its model, region and gpu.
func ReadCounts(name string, in io.Reader) ([]ReplicaCountAt, error) {
	r := csv.NewReader(in)
	r.TrimLeadingSpace = true
	header, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading counts %s: is empty: must begin with a header such as minute,model,region,replicas", name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading counts %s: %w", name, err)
	}
	columns, err := service.Columns(header)
	if err != nil {
		return nil, fmt.Errorf("reading counts %s:1: %w", name, err)
	}
	_, byMinute := columns["minute"]
	_, byTime := columns["at"]
	if !byMinute && !byTime {
		return nil, fmt.Errorf("reading counts %s:1: must have a column minute or at, got %s", name, strings.Join(header, ","))
	}
	for _, want := range []string{"model", "region", "replicas"} {
		if _, ok := columns[want]; !ok {
			return nil, fmt.Errorf("reading counts %s:1: must have a column %s, got %s", name, want, strings.Join(header, ","))
		}
	}
	var out []ReplicaCountAt
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, csv.ErrFieldCount) {
			return nil, fmt.Errorf("reading counts %s: %w", name, err)
		}
		line, _ := r.FieldPos(0)
		if len(record) != len(header) {
			return nil, fmt.Errorf("reading counts %s:%d: must have %d fields like the header, got %d", name, line, len(header), len(record))
		}
		c, err := readCount(record, columns)
		if err != nil {
			return nil, fmt.Errorf("reading counts %s:%d: %w", name, line, err)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("reading counts %s: has no row after its header", name)
	}
	slices.SortStableFunc(out, func(a, b ReplicaCountAt) int { return a.At.Compare(b.At) })
	return out, nil
}

func readCount(record []string, columns map[string]int) (ReplicaCountAt, error) {
	field := func(name string) string {
		if i, ok := columns[name]; ok {
			return strings.TrimSpace(record[i])
		}
		return ""
	}
	c := ReplicaCountAt{ReplicaCount: ReplicaCount{Model: field("model"), Region: service.Region(field("region")), GPU: field("gpu")}}
	if c.Model == "" || c.Region == "" {
		return c, fmt.Errorf("model and region: must not be empty, got %q and %q", c.Model, c.Region)
	}
	var err error
	if c.Replicas, err = strconv.Atoi(field("replicas")); err != nil || c.Replicas < 0 || c.Replicas > 1e6 {
		return c, fmt.Errorf("replicas: must be a whole number from 0 to 1000000, got %q", field("replicas"))
	}
	if minute := field("minute"); minute != "" {
		n, err := strconv.ParseInt(minute, 10, 64)
		if err != nil || n < 0 || n > 1e9 {
			return c, fmt.Errorf("minute: must be minutes since 1970, got %q", minute)
		}
		c.At = time.Unix(n*60, 0)
		return c, nil
	}
	if c.At, err = time.Parse(time.RFC3339, field("at")); err != nil {
		return c, fmt.Errorf("at: must be a time such as 2025-01-31T12:00:00Z, got %q", field("at"))
	}
	return c, nil
}
