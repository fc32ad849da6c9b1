package local

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"skyserve/internal/atomicfile"
)

const (
	// maxLogBytes is the size at which a log is rotated when its process is started; one old log is kept
	// as .1.
	maxLogBytes = 8 << 20
	// maxErrorLines is the maximum number of log lines in an error.
	maxErrorLines = 8
	// maxTailBytes is the maximum number of bytes that are read from the end of a log.
	maxTailBytes = 1 << 20
)

// logFile is the log of one process, open for appending.
type logFile struct{ *os.File }

// size returns the length of the log; 0 where it is unknown.
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
	if info, err := os.Stat(path); err == nil && info.Size() > maxLogBytes {
		if err := atomicfile.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, fileMode)
	return &logFile{f}, err
}

// Logs lists the ids of the objects with a log, sorted.
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

// Tail returns the last n log lines of the object id; fewer if the log has fewer lines or very long lines;
// none without a log.
func (s Service) Tail(id string, n int) ([]string, error) {
	lines, err := tailFrom(s.LogFile(id), 0, n)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return lines, err
}

// UnitTail returns the last n log lines of a unit of the machine id or, if the unit has not logged any,
// of the machine's process.
func (s Service) UnitTail(id, unit string, n int) ([]string, error) {
	lines, err := tailFrom(filepath.Join(s.machineDir(id), dirState, unit, "unit.log"), 0, n)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(lines) == 0 {
		return s.Tail(id, n)
	}
	return lines, err
}

// tailFrom returns the last n lines of a file after offset begin.
func tailFrom(path string, begin int64, n int) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading a log: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading a log: %w", err)
	}
	cut := info.Size()-maxTailBytes > begin
	begin = max(begin, info.Size()-maxTailBytes)
	data, err := io.ReadAll(io.NewSectionReader(f, begin, max(0, info.Size()-begin)))
	if err != nil {
		return nil, fmt.Errorf("reading a log: %w", err)
	}
	text := strings.TrimRight(string(data), "\n")
	if text == "" || n <= 0 {
		return nil, nil
	}
	lines := strings.Split(text, "\n")
	if cut {
		lines = lines[1:] // the first line is incomplete
	}
	return lines[max(0, len(lines)-n):], nil
}
