package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"skyserve/internal/atomicfile"
)

const (
	// logBytes is the size from which a log begins anew when its process is
	// started; the old one is kept once as .1.
	logBytes = 8 << 20
	// failureLines is how many last lines of a log an error shows.
	failureLines = 8
	// tailBytes bounds what is read for the last lines of a log.
	tailBytes = 1 << 20
	// followEvery is how often a followed log is looked at.
	followEvery = 200 * time.Millisecond
)

// logFile is the log of one process, open for appending.
type logFile struct{ *os.File }

// size is how long the log is now; 0 where that is not known.
func (l *logFile) size() int64 {
	info, err := l.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// openLog opens a log for a process to append to.
func openLog(path string) (*logFile, error) {
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil && info.Size() > logBytes {
		if err := atomicfile.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, fileMode)
	return &logFile{f}, err
}

// Logs lists the ids of the objects that ever wrote a log, sorted.
func (s Service) Logs() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, dirLogs))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listing the logs of %s: %w", s.name, err)
	}
	var ids []string
	for _, e := range entries {
		if id, isLog := strings.CutSuffix(e.Name(), ".log"); isLog {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// Tail is the last n lines that the object id wrote; fewer when there are fewer
// or when they are very long. No log is no lines.
func (s Service) Tail(id string, n int) ([]string, error) {
	lines, err := tailFrom(s.LogFile(id), 0, n)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return lines, err
}

// tailFrom is the last n lines of what a file holds from begin on.
func tailFrom(path string, begin int64, n int) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading log: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading log: %w", err)
	}
	cut := info.Size()-tailBytes > begin
	begin = max(begin, info.Size()-tailBytes)
	data, err := io.ReadAll(io.NewSectionReader(f, begin, max(0, info.Size()-begin)))
	if err != nil {
		return nil, fmt.Errorf("reading log: %w", err)
	}
	text := strings.TrimRight(string(data), "\n")
	if text == "" || n <= 0 {
		return nil, nil
	}
	lines := strings.Split(text, "\n")
	if cut {
		lines = lines[1:] // the first one is not whole
	}
	return lines[max(0, len(lines)-n):], nil
}

// Follow calls line for every line that the object id writes from now on, until
// ctx ends. A log that begins anew is followed from its beginning.
func (s Service) Follow(ctx context.Context, id string, line func(string)) error {
	f := follower{path: s.LogFile(id), line: line}
	defer f.close()
	f.open(io.SeekEnd)
	for pause(ctx, followEvery) {
		f.drain()
		if f.file == nil || !isAt(f.file, f.path) {
			f.drain()
			f.close()
			f.open(io.SeekStart)
		}
	}
	return context.Cause(ctx)
}

// follower reads a log as it grows.
type follower struct {
	path    string
	line    func(string)
	file    *os.File
	reader  *bufio.Reader
	partial string // the beginning of a line whose end was not written yet
}

// open opens the log where there is one, at its beginning or end.
func (f *follower) open(whence int) {
	file, err := os.Open(f.path)
	if err != nil {
		return // looked for again
	}
	if _, err := file.Seek(0, whence); err != nil {
		file.Close()
		return
	}
	f.file, f.reader, f.partial = file, bufio.NewReader(file), ""
}

func (f *follower) close() {
	if f.file != nil {
		f.file.Close()
		f.file = nil
	}
}

// drain passes on every whole line that there is.
func (f *follower) drain() {
	if f.file == nil {
		return
	}
	for {
		text, err := f.reader.ReadString('\n')
		f.partial += text
		if err != nil && len(f.partial) < tailBytes {
			return
		}
		f.line(strings.TrimSuffix(f.partial, "\n"))
		f.partial = ""
	}
}
