package record

// The limits of what a broker stores. They are part of the format: a batch
// beyond them is refused wherever it is read.
const (
	MaxKey          = 4096    // bytes of a key
	MaxID           = 256     // bytes of a message id
	MaxHeaders      = 64      // headers of one record
	MaxHeaderBytes  = 16384   // bytes of all header names and values of one record
	MaxBody         = 1 << 20 // bytes of a body
	MaxBatchRecords = 1000    // records of one batch
	MaxBatchBytes   = 4 << 20 // bytes of one batch, its header included
)

// Check tells whether a record may be stored, before it is put into a batch.
// The error is an *Error that says what to change.
func (r *Record) Check() error {
	switch {
	case !r.HasKey && len(r.Key) > 0:
		return &Error{Why: "a key without HasKey"}
	case len(r.Key) > MaxKey:
		return tooLarge("the key", len(r.Key), MaxKey, "bytes")
	case len(r.ID) > MaxID:
		return tooLarge("the message id", len(r.ID), MaxID, "bytes")
	case len(r.Headers) > MaxHeaders:
		return tooLarge("the header list", len(r.Headers), MaxHeaders, "headers")
	case len(r.Body) > MaxBody:
		return tooLarge("the body", len(r.Body), MaxBody, "bytes")
	}
	n := 0
	for _, h := range r.Headers {
		n += len(h.Name) + len(h.Value)
	}
	if n > MaxHeaderBytes {
		return tooLarge("the header list", n, MaxHeaderBytes, "bytes")
	}
	return nil
}
