#ifndef MACE_UTILS_MACROS_H_
#define MACE_UTILS_MACROS_H_

#ifndef MACE_DISABLE_COPY_AND_ASSIGN
#define MACE_DISABLE_COPY_AND_ASSIGN(CLASSNAME) \
  CLASSNAME(const CLASSNAME &) = delete;        \
  CLASSNAME &operator=(const CLASSNAME &) = delete
#endif

#ifndef MACE_EMPTY_VIRTUAL_DESTRUCTOR
#define MACE_EMPTY_VIRTUAL_DESTRUCTOR(CLASSNAME) \
 public:                                         \
  virtual ~CLASSNAME() {}
#endif

#define MACE_UNUSED(var) (void)(var)

#if defined(__GNUC__)
#define MACE_PREDICT_FALSE(x) (__builtin_expect(x, 0))
#define MACE_PREDICT_TRUE(x) (__builtin_expect(!!(x), 1))
#else
#define MACE_PREDICT_FALSE(x) (x)
#define MACE_PREDICT_TRUE(x) (x)
#endif

#endif  // MACE_UTILS_MACROS_H_
