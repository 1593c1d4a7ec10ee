/* Handles: a number of a slot and of its use, so that the handle of an ended object is recognised. */

#ifndef TENON_HANDLE_H
#define TENON_HANDLE_H

/* The kind of a handle, and how it is ended, for messages: {"bundle", "closed"}.  Compared by address. */
typedef struct {
  char name[12], ended[10];
} HandleKind;

void *tn_handle_new(const HandleKind *kind, void *object); /* NULL if there is no memory */
void *tn_handle_object(const HandleKind *kind, const void *handle); /* NULL, and an error text, if it is not valid */
void tn_handle_end(const void *handle);

#endif
