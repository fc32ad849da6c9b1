package job

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Response is the response to a request of a batch.
type Response struct {
	StatusCode int             `json:"status_code"`
	RequestID  string          `json:"request_id"`
	Body       json.RawMessage `json:"body"`
}

// OutputError is why a request has no response.
type OutputError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Output is a line of an output or error file.
type Output struct {
	ID       string       `json:"id"`
	CustomID string       `json:"custom_id"`
	Response *Response    `json:"response"`
	Error    *OutputError `json:"error"`
}

// Failed reports whether the line belongs to the error file.
func (o *Output) Failed() bool {
	return o.Response == nil || o.Response.StatusCode < 200 || o.Response.StatusCode > 299
}

// Encode returns the line with its line feed. A response that is not JSON becomes a string.
func (o *Output) Encode() []byte {
	if o.Response != nil && !json.Valid(o.Response.Body) {
		text, _ := json.Marshal(string(o.Response.Body)) // encoding a string cannot fail
		o.Response.Body = text
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(o) // every field can be encoded
	return b.Bytes()
}

// UnfinishedOutput returns the line of a request without a result, of a batch that ends in a state.
func UnfinishedOutput(id, customID string, ending Status) Output {
	e := &OutputError{Code: "batch_expired", Message: "This request could not be executed before the completion window expired."}
	switch ending {
	case Cancelled:
		e = &OutputError{Code: "batch_cancelled", Message: "This request was not executed because the batch was cancelled."}
	case Failed:
		e = &OutputError{Code: codeInputLost, Message: "This request was not executed because the input file of the batch was lost."}
	}
	return Output{ID: id, CustomID: customID, Error: e}
}

// codeInputLost is the code of the errors of a batch whose input file is missing or damaged in the store.
const codeInputLost = "input_lost"

// InputLost returns the error of a batch whose input file is missing or damaged in the store.
func InputLost(file string) Problem {
	e := LineError{Code: codeInputLost, Param: "input_file_id", Message: fmt.Sprintf("the content of the input file %s is missing or damaged in the store: upload it again, and create a new batch for the requests without a result", file)}
	return e.Problem()
}

// LostOutput returns the line of a request whose response was stored and is lost.
func LostOutput(id, customID string) Output {
	return Output{ID: id, CustomID: customID, Error: &OutputError{
		Code: "result_lost", Message: "This request was executed, but its response was lost from the store. Send the request again.",
	}}
}

// InvalidOutput returns the line of an error file for an invalid line of the input.
func InvalidOutput(id string, e *LineError) Output {
	return Output{ID: id, CustomID: e.CustomID, Error: &OutputError{Code: e.Code, Message: e.Error()}}
}
