package job

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Wait is what the requests of a batch wait for: a quota or budget that is used up.
type Wait struct {
	For   string `json:"for"`   // such as "quota of key bob (1 request per day)"
	Until int64  `json:"until"` // the end of its period, in Unix seconds
}

// NewWait returns a wait for a quota or budget.
func NewWait(limit string, until time.Time) Wait { return Wait{limit, until.Unix()} }

// Wait returns what the batch waits for at a time: nil unless all chunks that workers execute wait. If they wait for
// different things, it is the one that lasts longest.
func (r *Record) Wait(now time.Time) (longest *Wait) {
	if r.Batch.Status != InProgress {
		return nil
	}
	for i := range r.Chunks {
		switch w := r.Chunks[i].Wait; {
		case r.Chunks[i].Worker == "":
		case w == nil || w.Until <= now.Unix():
			return nil
		case longest == nil || w.Until > longest.Until:
			longest = w
		}
	}
	return longest
}

// HeaderWait is the header of a Wait.
const HeaderWait = "X-Skyserve-Waits-For"

// untilParam precedes Wait.Until in the header.
const untilParam = "; until="

// Header returns the wait as a string of RFC 8941 with a parameter, such as
// "quota of key bob (1 request per day)"; until=1790000000. Characters outside of ASCII are escaped, as \u00e9.
func (w *Wait) Header() string {
	return strconv.QuoteToASCII(w.For) + untilParam + strconv.FormatInt(w.Until, 10)
}

// ParseWait parses the value of the header.
func ParseWait(header string) (w Wait, err error) {
	quoted, err := strconv.QuotedPrefix(header)
	if err == nil {
		w.For, err = strconv.Unquote(quoted)
	}
	until, found := strings.CutPrefix(header[len(quoted):], untilParam)
	if err == nil && found {
		w.Until, err = strconv.ParseInt(until, 10, 64)
	}
	if err != nil || !found {
		return Wait{}, fmt.Errorf(`header %s: must be a string with a time, such as "quota of key a (1 request per day)"; until=1790000000, got %q`, HeaderWait, Truncate(header))
	}
	return w, nil
}
