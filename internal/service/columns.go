package service

import (
	"fmt"
	"strings"
)

// Columns returns the index of each column of a CSV header, by its name in lower case. Columns without a name are left
// out. A duplicate name is an error, because only one of its columns would be read.
func Columns(header []string) (map[string]int, error) {
	columns := map[string]int{}
	for i, name := range header {
		name = strings.ToLower(strings.TrimSpace(strings.TrimPrefix(name, "\ufeff")))
		if _, twice := columns[name]; twice {
			return nil, fmt.Errorf("duplicate column %q: rename or remove one", name)
		}
		if name != "" {
			columns[name] = i
		}
	}
	return columns, nil
}
