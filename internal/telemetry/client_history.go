package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// History returns the points from sinceMinute on (minutes since the Unix epoch). complete is
// false if the store did not respond; the points are then only those that this balancer has in
// memory. The points of other balancers lack what these have not stored yet.
func (c *Client) History(ctx context.Context, sinceMinute int64) (points []Point, complete bool, err error) {
	return c.history(ctx, "/v1/history?since="+strconv.FormatInt(sinceMinute, 10))
}

// PointsUnstored is the value of the parameter points of GET /v1/history for UnstoredPoints.
const PointsUnstored = "unstored"

// UnstoredPoints returns this balancer's own points from sinceMinute on that may differ from those in the store. A balancer
// of an older version returns its History.
func (c *Client) UnstoredPoints(ctx context.Context, sinceMinute int64) ([]Point, error) {
	points, _, err := c.history(ctx, "/v1/history?points="+PointsUnstored+"&since="+strconv.FormatInt(sinceMinute, 10))
	return points, err
}

func (c *Client) history(ctx context.Context, path string) (points []Point, complete bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	res, err := c.stream(ctx, http.MethodGet, path, http.NoBody, clientTimeout)
	if err != nil {
		return nil, false, err
	}
	defer res.Body.Close()
	body := &io.LimitedReader{R: res.Body, N: maxHistoryBytes + 1}
	points, complete, err = decodeHistory(json.NewDecoder(body))
	if body.N <= 0 {
		err = fmt.Errorf("longer than the maximum of %d MiB", maxHistoryBytes>>20)
	}
	if err != nil {
		return nil, false, fmt.Errorf("decoding the response of GET %s: %w", redact(c.base+path), err)
	}
	return points, complete, nil
}

// decodeHistory decodes a response of GET /v1/history point by point: two weeks of 30 balancers are 150 MB of JSON, which
// would otherwise be in memory beside the points.
func decodeHistory(d *json.Decoder) (points []Point, complete bool, err error) {
	if err := expectDelim(d, '{'); err != nil {
		return nil, false, err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, false, err
		}
		switch key {
		case "complete":
			err = d.Decode(&complete)
		case "points":
			points, err = decodePoints(d)
		default: // of a later version
			err = d.Decode(new(json.RawMessage))
		}
		if err != nil {
			return nil, false, err
		}
	}
	return points, complete, expectDelim(d, '}')
}

func decodePoints(d *json.Decoder) (points []Point, err error) {
	if err := expectDelim(d, '['); err != nil {
		return nil, err
	}
	for d.More() {
		var p Point
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		points = append(points, p)
	}
	return points, expectDelim(d, ']')
}

// expectDelim reads a delimiter.
func expectDelim(d *json.Decoder, want json.Delim) error {
	token, err := d.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err == nil && token != want {
		err = fmt.Errorf("found %v, want %s", token, want)
	}
	return err
}
