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
	formSize = newForm(`^[1-9][0-9]{0,11}(KiB|MiB|GiB|TiB)$`, "a size such as 512MiB or 2GiB")
	sizeType = reflect.TypeFor[Size]()
	// sizeTypo matches common misspellings of a size: 2GB, 2G, 2Gi, 2 gib.
	sizeTypo = regexp.MustCompile(`^([1-9][0-9]{0,11}) ?([KkMmGgTt])([Ii]?[Bb]?)$`)
)

// String formats the size in the largest unit that divides it.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if s != 0 && s%u.unit == 0 {
			return strconv.FormatInt(int64(s/u.unit), 10) + u.name
		}
	}
	return "0B"
}

// ParseSize parses a size. The error describes the format and, where the text is nearly a size,
// suggests one.
func ParseSize(text string) (Size, error) {
	if text == "0B" { // String of an unset size
		return 0, nil
	}
	if !formSize.matches(text) {
		err := fmt.Errorf("must be %s, got %q", formSize.description, shorten(text))
		if suggested := suggestSize(text); suggested != "" {
			err = fmt.Errorf("%w; write %s", err, suggested)
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
	return 0, fmt.Errorf("must be less than 8EiB, got %q", text)
}

// suggestSize returns the size that a misspelled text probably means; empty where there is none.
func suggestSize(text string) string {
	m := sizeTypo.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return m[1] + strings.ToUpper(m[2]) + "iB"
}

// MarshalText formats the size as String does.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses a size as ParseSize does.
func (s *Size) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSize(string(text))
	return err
}
