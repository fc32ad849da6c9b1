package atomicfile

import (
	"encoding/json"
	"errors"
	"fmt"
)

// DamagedError reports a file that is not the JSON document that was written to it.
type DamagedError struct {
	// Path is the file.
	Path string
	// Bytes is the size of the file. Offset is where reading failed; 0 if unknown.
	Bytes, Offset int64
	err           error
}

// Error names the file and the place of the damage.
func (e *DamagedError) Error() string {
	switch {
	case e.Bytes == 0:
		return fmt.Sprintf("%s is damaged: the file is empty", e.Path)
	case e.Offset > 0:
		return fmt.Sprintf("%s is damaged: it is not valid JSON from byte %d of %d", e.Path, e.Offset, e.Bytes)
	}
	return fmt.Sprintf("%s is damaged: %v", e.Path, e.err)
}

// Unwrap returns the error of the decoder.
func (e *DamagedError) Unwrap() error { return e.err }

// DecodeJSON decodes the content of a file. The error is a *DamagedError.
func DecodeJSON(path string, data []byte, v any) error {
	err := json.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	damaged := &DamagedError{Path: path, Bytes: int64(len(data)), err: err}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		damaged.Offset = syntax.Offset
	case errors.As(err, &kind) && kind.Field == "": // the whole document
		damaged.err = fmt.Errorf("it must not be a JSON %s", kind.Value)
	case kind != nil:
		damaged.err = fmt.Errorf("%q must not be a JSON %s", kind.Field, kind.Value)
	}
	return damaged
}
