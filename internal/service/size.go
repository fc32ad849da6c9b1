package service

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// Size is a number of bytes, written as 512MiB or 2GiB.
type Size int64

// Units of a Size.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
)

var sizeUnits = []struct {
	name string
	unit Size
}{{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", 1}}

var (
	formSize = shape(`^[1-9][0-9]{0,11}(KiB|MiB|GiB|TiB)$`, "a size such as 512MiB or 2GiB")
	sizeType = reflect.TypeFor[Size]()
	// likeSize is a size as others write it: 2GB, 2G, 2Gi, 2 gib.
	likeSize = regexp.MustCompile(`^([1-9][0-9]{0,11}) ?([KkMmGgTt])([Ii]?[Bb]?)$`)
)

// String is the size in the largest unit that it is a whole number of.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if s != 0 && s%u.unit == 0 {
			return strconv.FormatInt(int64(s/u.unit), 10) + u.name
		}
	}
	return "0B"
}

// ParseSize reads a size. The error says what one looks like and, where the text is
// nearly one, what was meant.
func ParseSize(text string) (Size, error) {
	if text == "0B" { // as String writes what is left out
		return 0, nil
	}
	if !formSize.expr.MatchString(text) {
		err := fmt.Errorf("must be %s, got %q", formSize.words, shorten(text))
		if meant := meantSize(text); meant != "" {
			err = fmt.Errorf("%w: write %s", err, meant)
		}
		return 0, err
	}
	digits, unit := text[:len(text)-3], text[len(text)-3:]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, err
	}
	for _, u := range sizeUnits {
		if u.name == unit && n <= math.MaxInt64/int64(u.unit) {
			return Size(n) * u.unit, nil
		}
	}
	return 0, fmt.Errorf("is too large, got %q", text)
}

// meantSize is what a text that is nearly a size was meant to be; empty where it is not.
func meantSize(text string) string {
	m := likeSize.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return m[1] + strings.ToUpper(m[2]) + "iB"
}

// MarshalText writes the size as String does.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a size as ParseSize does.
func (s *Size) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSize(string(text))
	return err
}
