package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// Recording is the content of a file.
type Recording struct {
	Path string
	Header
	Calls []Call // in the order of their requests
}

// ReadDir reads all recordings of a directory, in the order of their start.
func ReadDir(dir string) ([]Recording, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("reading recordings: no file *.jsonl in %s", dir)
	}
	var recordings []Recording
	for _, path := range paths {
		r, err := ReadFile(path)
		if err != nil {
			return nil, err
		}
		recordings = append(recordings, r)
	}
	slices.SortStableFunc(recordings, func(a, b Recording) int { return a.Started.Compare(b.Started) })
	return recordings, nil
}

// ReadFile reads a recording. An incomplete last line, which a killed process leaves, is ignored.
func ReadFile(path string) (Recording, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Recording{}, fmt.Errorf("reading a recording: %w", err)
	}
	r := Recording{Path: path}
	lines := bufio.NewReader(bytes.NewReader(text))
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF { //nolint:errorlint // as documented for ReadBytes
			break
		}
		if err != nil {
			return Recording{}, fmt.Errorf("reading %s:%d: %w", path, number, err)
		}
		if number == 1 {
			err = json.Unmarshal(line, &r.Header)
			if err == nil && r.Format != Format {
				err = fmt.Errorf("skyserve_recording must be %d, got %d: the file is no recording, or one of another version", Format, r.Format)
			}
		} else {
			var c Call
			err = json.Unmarshal(line, &c)
			r.Calls = append(r.Calls, c)
		}
		if err != nil {
			return Recording{}, fmt.Errorf("reading %s:%d: %w", path, number, err)
		}
	}
	slices.SortStableFunc(r.Calls, func(a, b Call) int { return a.Number - b.Number })
	return r, nil
}
